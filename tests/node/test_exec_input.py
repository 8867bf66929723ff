"""What `fleet exec` does with its standard input, and when nobody reads its output; on the local transport."""

from __future__ import annotations

import hashlib
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fleet.api import Fleet
from fleet.errors import FleetError
from fleet.model import Host, Inventory
from fleet.transport.input import Feed, distribute
from tests.node.nodes import until
from tests.node.test_execute import NAP, wait_gone

FLEET = f"{sys.executable} -m fleet --transport local"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fleet.yaml").write_text("hosts:\n  n1: {}\n  n2: {}\n")
    return tmp_path


def bash(folder: Path, script: str, stdin: int = subprocess.DEVNULL) -> tuple[int, list[str], str]:
    """(status, stdout's lines without heads, stderr) of a script in which `$F` is fleet."""
    env = {**os.environ, "F": FLEET, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, stdin=stdin, capture_output=True, text=True, timeout=100
    )
    return done.returncode, [line for line in done.stdout.splitlines() if line[:3] != "---"], done.stderr


def hosts(*names: str) -> Fleet:
    inventory = Inventory(tuple(Host(name, name) for name in names))
    return Fleet(inventory, inventory, "local")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("echo hello | $F exec -- cat", ["hello"]),
        ("$F exec -- bash < s.sh", ["one", "two"]),
        pytest.param("$F exec --shell 'cat; echo end' <<< here", ["here", "end"], marks=pytest.mark.slow),
        ("exec 3< s.sh; $F exec --stdin -- tail -1 <&3", ["echo two"]),
        pytest.param("echo a | $F exec -- true", [], marks=pytest.mark.slow),
        ("$F exec --shell 'cat; echo end' <&-", ["end"]),
        pytest.param("$F exec --shell 'cat; echo end' </dev/null", ["end"], marks=pytest.mark.slow),
        pytest.param("$F exec --stdin --shell 'cat; echo end' </dev/null", ["end"], marks=pytest.mark.slow),
        pytest.param("$F exec --shell 'cat; echo end' < <(:)", ["end"], marks=pytest.mark.slow),
        pytest.param("echo a | $F exec -n --shell 'cat; echo end'", ["end"], marks=pytest.mark.slow),
        pytest.param("echo a | $F exec --no-stdin --shell 'cat; echo end'", ["end"], marks=pytest.mark.slow),
        ("yes | $F exec -- head -1", ["y"]),
        ("exec 3< <(exec sleep 200 2>/dev/null); endless=$!; $F exec -- sleep 0.5 <&3; kill $endless", []),
        pytest.param("yes | $F exec --shell 'exec <&-; sleep 1; echo end'", ["end"], marks=pytest.mark.slow),
    ],
)
def test_an_input_of_its_own_goes_to_every_command(line: str, shown: list[str], folder: Path) -> None:
    (folder / "s.sh").write_text("echo one\necho two")
    begun = time.monotonic()
    assert bash(folder, line) == (0, shown, "")
    assert time.monotonic() - begun < 60


def test_one_that_is_shared_is_left_alone(folder: Path) -> None:
    (folder / "hosts").write_text("n1\nn2\n")
    loop = 'while read -r h; do $F exec -w $h --shell "cat; echo $h"; done < hosts'
    status, shown, stderr = bash(folder, loop)
    assert (status, shown) == (0, ["n1", "n2"])
    assert stderr == "  hint: what waits on standard input is not sent, as fleet's caller has it, too: --stdin, or -n\n"
    # the input of a script, of which nothing is read before its turn
    for line in ("exec -n -- true", "exec --stdin -- cat"):
        assert bash(folder, f"(sleep 0; $F {line}; cat) < hosts") == (0, ["n1", "n2"], "")


def test_an_inventory_that_is_read_from_it_is_no_input(folder: Path) -> None:
    assert bash(folder, "$F -i /dev/stdin exec --shell 'cat; echo end' < fleet.yaml") == (0, ["end"], "")


@pytest.mark.slow
def test_a_playbook_sends_it_where_a_step_says_so(folder: Path) -> None:
    step = "- exec: {%sshell: 'cat; echo end'}\n"
    (folder / "p.yaml").write_text(step % "")
    status, shown, _ = bash(folder, "echo a | $F -q play p.yaml")
    assert (status, shown) == (0, ["end"])
    (folder / "p.yaml").write_text(step % "stdin: true, ")
    status, shown, _ = bash(folder, "echo a | $F -q play p.yaml")
    assert (status, shown) == (0, ["a", "end"])


def test_a_terminal_is_not_read(folder: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"typed\n")
    assert bash(folder, "$F exec --shell 'cat; echo end'", theirs) == (0, ["end"], "")
    status, shown, stderr = bash(folder, "$F exec --stdin -- cat", theirs)
    assert (status, shown) == (2, []) and "is a terminal" in stderr and "hint: " in stderr
    os.close(ours)
    os.close(theirs)


def test_bytes_and_files_by_the_api(tmp_path: Path) -> None:
    data = random.Random(3).randbytes(5_000_000)
    (tmp_path / "f").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest().encode() + b"  -\n"
    fleet = hosts("a", "b", "c")
    with open(tmp_path / "f", "rb") as file:
        assert [result.stdout for result in fleet.exec(["sha256sum"], stdin=file).results] == [digest] * 3
    assert [result.stdout for result in fleet.exec(["sha256sum"], stdin=data).results] == [digest] * 3
    assert [result.stdout for result in fleet.exec(["wc", "-c"], stdin=b"").results] == [b"0\n"] * 3
    assert "secret" not in repr(fleet.plan.exec(["cat"], stdin=b"secret"))


def test_more_hosts_than_at_once_get_all(tmp_path: Path) -> None:
    inventory = hosts("a", "b", "c").inventory
    report = Fleet(inventory, inventory, "local", fanout=1).exec(["wc", "-c"], stdin=b"x" * 3_000_000)
    assert [result.stdout for result in report.results] == [b"3000000\n"] * 3


def test_an_input_that_cannot_be_read_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    """The commands are ended, and see no end of it."""
    os.mkfifo(tmp_path / "out")
    with open(tmp_path / "f", "wb") as file:  # not for reading
        report = hosts("a").exec(shell=f"cat > {tmp_path}/got; touch {tmp_path}/whole", stdin=file)  # type: ignore[arg-type]
    error = report.results[0].error
    assert isinstance(error, FleetError) and "standard input cannot be read" in str(error) and error.host == "a"
    assert report.exit_code != 0 and not (tmp_path / "whole").exists()


def test_a_command_that_is_ended_takes_no_further_step(tmp_path: Path) -> None:
    """A shell among many processes of its own: it does not see a child end before itself."""
    for step in map(str, range(2)):
        with open(tmp_path / "f", "wb") as file:  # not for reading
            many = f"for i in $(seq 200); do sleep 4803.{NAP} & done; cat; : > {tmp_path}/{step}"
            assert hosts("a").exec(shell=many, stdin=file).exit_code == 125  # type: ignore[arg-type]
        assert not (tmp_path / step).exists()


def test_what_is_killed_amid_its_input_is_told() -> None:
    """The process there that passes it on."""
    threading.Thread(target=kill_what_passes_it_on).start()
    with open("/dev/zero", "rb", 0) as source:
        report = hosts("a").exec(["sleep", f"4801.{NAP}"], stdin=source)
    error = report.results[0].error
    assert error is not None and "broke off there: exit status 137" in str(error)
    wait_gone(f"sleep 4801.{NAP}")


def kill_what_passes_it_on() -> None:
    deadline = time.monotonic() + 60
    while not (found := passing()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def passing() -> list[int]:
    """Every `cat` whose parent is what passes an input on, and a child of this process."""
    shells = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                shells[int(entry.name)] = int(stat[1]), (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return [
        pid
        for pid, (parent, command) in shells.items()
        if command == b"cat\0" and parent in shells and shells[parent][0] == os.getpid()
    ]


def test_no_feed_is_far_ahead_of_another_and_one_that_is_over_holds_nobody_up() -> None:
    fast, slow, gone = Feed(2), Feed(2), Feed(2)
    gone.over = True
    taken = list[bytes]()
    reader = threading.Thread(target=lambda: taken.extend(fast.chunks()))
    reader.start()
    sender = threading.Thread(target=distribute, args=(b"x" * (20 << 16), [fast, slow, gone]))
    sender.start()
    until(lambda: len(taken) == 3)
    assert sender.is_alive()
    slow.over = True
    sender.join(60)
    reader.join(60)
    assert sum(map(len, taken)) == 20 << 16


@pytest.mark.parametrize(
    "stop", ["$F exec --no-fold --shell", pytest.param("$F play --no-fold t.py:go; :", marks=pytest.mark.slow)]
)
def test_commands_whose_output_nobody_reads_any_more_are_ended(stop: str, folder: Path) -> None:
    line = f"while :; do echo tick; sleep 0.2{NAP}; done"
    (folder / "t.py").write_text(f"from fabric import task\n@task\ndef go(c):\n    c.run('{line}')\n")
    status, shown, stderr = bash(folder, f"({stop} '{line}'; exit $?) | head -2; echo ${{PIPESTATUS[0]}}")
    if "play" in stop:
        status, shown, stderr = bash(folder, "$F play --no-fold t.py:go | head -2; echo ${PIPESTATUS[0]}")
    assert [len(shown), shown[-1], stderr] == [3, "141", ""]
    wait_gone(f"sleep 0.2{NAP}")


@pytest.mark.parametrize(
    "verb",
    [
        "exec -- seq 100000",
        "hosts",
        *(
            pytest.param(verb, marks=pytest.mark.slow)
            for verb in ("--json exec -- seq 100000", "check", "ps", "runs", "help exec")
        ),
    ],
)
def test_verbs_that_print_end_quietly_where_nobody_reads(verb: str, folder: Path) -> None:
    assert bash(folder, f"$F {verb} | (exec <&-; sleep 0); echo ${{PIPESTATUS[0]}}")[1:] == (["141"], "")


def test_a_sync_of_several_parts_is_finished_where_nobody_reads(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "a").write_text("a")
    (folder / "data").write_text("d")
    (folder / "fleet.yaml").write_text(
        f"hosts:\n  n1: {{address: 127.0.0.1, workdir: {folder}/there}}\n"
        f"sync:\n  code: {{src: code, to: {folder}/there}}\n  data: ['data:{folder}/there2/']\n"
    )
    status, shown, stderr = bash(folder, "$F sync | (exec <&-; sleep 0); echo ${PIPESTATUS[0]}")
    assert shown == ["141"], stderr
    assert (folder / "there" / "a").exists() and (folder / "there2" / "data").exists()
