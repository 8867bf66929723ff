"""exec over real sshd: bad neighbours are named in time and cost the good ones nothing."""

from __future__ import annotations

import json
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.inventory.nodeset import fold
from tests.lab.healing import BreakableLab
from tests.lab.setup_ssh_tools import fingerprint
from tests.lab.virtual_lab import VirtualLab

ODD = ["it's", '72" tall', "$(id)", "a\nb", "*", "%n", "", "x" * 100_000, "-w", "--", "\\", "é"]
SHOW = ["/usr/bin/python3", "-c", "import json,sys; print(json.dumps(sys.argv[1:]))"]
TIMEOUT = 15.0  # the good host is to make it


def test_arguments_byte_for_byte_and_folding(ready_lab: VirtualLab) -> None:
    done = ready_lab.fleet("-i", "lab", "--json", "exec", "--", *SHOW, *ODD, check=True)
    document = json.loads(done.stdout)
    assert document["ok"] and document["exit_code"] == 0 and list(document["hosts"]) == ready_lab.names
    for host in document["hosts"].values():
        assert json.loads(host["stdout"]) == ODD and host["exit_status"] == 0 and host["error"] is None
    text = ready_lab.fleet("-i", "lab", "exec", "--", "echo", "same", check=True).stdout
    assert text.count("same") == 1 and "(3)" in text


def test_outputs_that_differ_in_a_line_show_the_difference(ready_lab: VirtualLab) -> None:
    odd = ready_lab.names[2]
    lines = f"seq 1 9; [ $(hostname) = {odd} ] && echo ten || echo 10; echo end"
    text = ready_lab.fleet("-i", "lab", "exec", "--shell", lines, check=True).stdout.splitlines()
    usual = text[0].split()[1]
    assert text == [
        f"--- {usual} (2) ---",
        *map(str, range(1, 11)),
        "end",
        f"--- {odd}, where it differs from {usual} ---",
        "line 10:",
        f"  {usual}: 10",
        f"  {f'{odd}:':{len(usual) + 1}} ten",
    ]


def test_the_largest_status_and_the_nodes_shell(ready_lab: VirtualLab) -> None:
    first = ready_lab.names[0]
    done = ready_lab.fleet("-i", "lab", "exec", "--shell", f"[ $(hostname) = {first} ] && exit 9 || kill -9 $$")
    assert done.returncode == 137
    assert f"host {first}: exit status 9" in done.stderr
    assert ready_lab.fleet("-i", "lab", "-w", first, "exec", "--shell", "exit 9").returncode == 9


def leftovers(lab: VirtualLab, needle: str) -> list[str]:
    return [n for n in lab.names if lab.sh(n, f"pgrep -f '{needle[0]}[{needle[1]}]{needle[2:]}'", check=False)]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing_behind(ready_lab: VirtualLab, times: int) -> None:
    seconds = f"{4400 + times}"
    process = ready_lab.popen("-i", "lab", "exec", "--shell", f"setsid sleep {seconds} & sleep {seconds}")
    wait_for(lambda: len(leftovers(ready_lab, f"sleep {seconds}")) == 3)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert process.wait(300) == 130
    process.communicate()
    wait_for(lambda: not leftovers(ready_lab, f"sleep {seconds}"))


def test_a_killed_head_leaves_nothing_behind(ready_lab: VirtualLab) -> None:
    process = ready_lab.popen("-i", "lab", "exec", "--", "sleep", "4410")
    wait_for(lambda: len(leftovers(ready_lab, "sleep 4410")) == 3)
    process.kill()
    process.communicate()
    wait_for(lambda: not leftovers(ready_lab, "sleep 4410"))


def test_a_timeout_under_one_name_of_a_machine_ends_no_command_under_another(
    ready_lab: VirtualLab, tmp_path: Path
) -> None:
    """The third begins when the second has ended, and is half through when the first one's time is over."""
    first, second, _ = ready_lab.names
    at = {"one": (ready_lab.address(first), first), "two": (second, second), "three": (first, first)}
    hosts = "".join(
        f"  {name}: {{address: {address}, env: {{WHO: {name}}}, host_key: {fingerprint(ready_lab, host)}}}\n"
        for name, (address, host) in at.items()
    )
    (tmp_path / "fleet.yaml").write_text(f"defaults: {{user: root}}\nhosts:\n{hosts}")
    line = "case $WHO in one) sleep 4421 ;; two) sleep 3 ;; three) sleep 9.5 ;; esac"
    words = ("--json", "--fanout", "2", "exec", "-n", "--timeout", "12", "--shell", line)
    ran = ready_lab.fleet("-i", str(tmp_path / "fleet.yaml"), *words)
    assert ran.returncode == 124, (ran.stdout, ran.stderr)
    done = json.loads(ran.stdout)["hosts"]
    assert done["one"]["error"]["kind"] == "deadline", done
    assert [done[name]["exit_status"] for name in ("two", "three")] == [0, 0], done


def test_timeout_is_124_and_leaves_nothing_behind(ready_lab: VirtualLab) -> None:
    done = ready_lab.fleet("-i", "lab", "exec", "--timeout", "1", "--", "sleep", "4420")
    assert done.returncode == 124 and "still running after 1 s" in done.stderr
    wait_for(lambda: not leftovers(ready_lab, "sleep 4420"))


@pytest.mark.slow
def test_64_open_files_are_enough_for_one_host_at_a_time(ready_lab: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "t.sh").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "t.sh").chmod(0o755)
    for verb in (
        ["exec", "--", "true"],
        ["sync", "--to", "~/few"],
        ["sync", "--data", "t.sh:/root/few-data/"],
        ["kill-port", "29999"],
        ["launch", "--engine", "command", "--workdir", "~/few", "./t.sh"],
    ):
        process = ready_lab.popen(
            "-i",
            "lab",
            "--fanout",
            "1",
            *verb,
            cwd=tmp_path,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
        )
        said = process.communicate(timeout=300)
        assert process.returncode == 0, (verb, said)


def wait_for(condition: object, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def neighbours(breakable: BreakableLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VirtualLab, Path]]:
    """A lab of which only the first host is well, and an inventory that names every other trouble, too."""
    lab = breakable.enrol()
    good, swapped, frozen, cut = lab.names
    lab.swap_host_key(swapped)
    lab.fleet("lab", "freeze", frozen, check=True)
    lab.fleet("lab", "cut", cut, check=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lines = [f"  {name}: {{address: {lab.address(name)}}}" for name in lab.names]
        lines += [
            f"  refused: {{address: {lab.address(good)}, port: 2}}",
            "  nowhere: {address: no-such-host.invalid}",
            f"  silent: {{address: 127.0.0.1, port: {silent.getsockname()[1]}}}",
        ]
        path = tmp_path_factory.mktemp("inv") / "fleet.yaml"
        path.write_text("defaults: {user: root, workdir: ~/work}\nhosts:\n" + "\n".join(lines) + "\n")
        yield lab, path


REASONS = ["host-key", "timeout|banner", "timeout|unreachable", "refused", "resolve", "banner|timeout"]


def test_every_bad_neighbour_is_named_in_time(neighbours: tuple[VirtualLab, Path]) -> None:
    lab, inventory = neighbours
    done = lab.fleet("-i", str(inventory), "--connect-timeout", str(TIMEOUT), "--json", "exec", "--", "hostname")
    assert done.returncode == 122
    hosts = json.loads(done.stdout)["hosts"]
    good, *bad = hosts
    assert hosts[good]["ok"] and hosts[good]["stdout"] == f"{good}\n"
    for name, kinds in zip(bad, REASONS, strict=True):
        error = hosts[name]["error"]
        assert not hosts[name]["ok"] and error["kind"] in kinds.split("|"), (name, error)
        assert error["message"] and error["hint"]
    assert hosts[bad[0]]["error"]["message"].count("SHA256:") == 2


def test_launch_starts_nothing_beside_bad_neighbours(neighbours: tuple[VirtualLab, Path], tmp_path: Path) -> None:
    lab, inventory = neighbours
    good = lab.names[0]
    lab.sh(good, "mkdir -p /root/work")
    done = lab.fleet(
        "-i",
        str(inventory),
        "--connect-timeout",
        str(TIMEOUT),
        "launch",
        "--engine",
        "command",
        "touch",
        "/root/started",
        cwd=tmp_path,
    )
    assert done.returncode == 122
    assert lab.sh(good, "ls /root/started", check=False) == ""
    for name in (*lab.names[1:], "refused", "nowhere", "silent"):
        assert name in done.stderr


def test_a_swapped_key_is_refused_by_every_verb(neighbours: tuple[VirtualLab, Path], tmp_path: Path) -> None:
    lab, inventory = neighbours
    swapped = lab.names[1]
    for verb in (
        ["exec", "--", "true"],
        ["sync"],
        ["check"],
        ["launch", "x.py"],
        ["kill-port", "1", "-y"],
        ["setup-ssh", "--tofu", "--password-file", str(lab.password_file)],
    ):
        done = lab.fleet("-i", str(inventory), "-w", swapped, *verb, cwd=tmp_path)
        assert done.returncode == 122, (verb, done.stdout, done.stderr)
        assert (done.stdout + done.stderr).count("SHA256:") >= 2, (verb, done.stdout, done.stderr)


def test_a_host_that_freezes_while_a_command_runs_is_named(breakable: BreakableLab) -> None:
    breakable.heal()
    lab = breakable.enrol()
    victim = lab.names[1]
    # as long as it takes to freeze one
    line = f"[ $(hostname) = {victim} ] && exec sleep 4430; until [ -e /run/frozen ]; do sleep 0.2; done"
    process = lab.popen("-i", "lab", "--json", "exec", "--shell", line)
    wait_for(lambda: victim in leftovers(lab, "sleep 4430"))
    lab.fleet("lab", "freeze", victim, check=True)
    for name in lab.names:
        if name != victim:
            lab.sh(name, "touch /run/frozen")
    try:
        out, _err = process.communicate(timeout=300)
    finally:
        lab.fleet("lab", "heal", victim, check=True)
    hosts = json.loads(out)["hosts"]
    assert process.returncode == 122 and hosts[victim]["error"]["kind"] == "lost"
    assert hosts[lab.names[0]]["ok"]
    wait_for(lambda: not leftovers(lab, "sleep 4430"))


def test_hosts_that_fail_are_told_of_by_cause(lab: VirtualLab, tmp_path: Path) -> None:
    first, second, third, fourth = lab.enrol().names
    net = lab.address(first).rpartition(".")[0]
    wrong = "SHA256:" + "A" * 43
    hosts = {
        "ok1": {"address": lab.address(first)},
        "dead1": {"address": lab.address(first), "port": 2},
        "dead2": {"address": lab.address(second), "port": 2},
        "gone1": {"address": f"{net}.251"},
        "gone2": {"address": f"{net}.252"},
        "changed1": {"address": lab.address(second), "host_key": wrong},
        "changed2": {"address": lab.address(third), "host_key": wrong},
        "locked1": {"address": lab.address(fourth), "user": "nobody"},
    }
    inventory = tmp_path / "mixed.yaml"
    inventory.write_text(json.dumps({"hosts": hosts}))
    done = lab.fleet("-i", str(inventory), "exec", "--", "hostname")
    assert done.returncode == 122 and done.stdout == f"--- ok1 ---\n{first}\n"
    errors = [line.removeprefix("error: host ") for line in done.stderr.splitlines() if line.startswith("error")]
    assert [error.split(": ")[0] for error in errors] == ["dead[1-2]", "gone[1-2]", "changed[1-2]", "locked1"], (
        done.stderr
    )
    addresses = fold([lab.address(first), lab.address(second)])
    assert errors[0] == f"dead[1-2]: {addresses} port 2 refused the connection"
    assert f"gone[1-2]: {net}.[251-252] port 22 cannot be reached" in errors[1]
    assert "--replace-key changed[1-2]" in done.stderr
    document = json.loads(lab.fleet("-i", str(inventory), "--json", "exec", "--", "hostname").stdout)
    assert [document["hosts"][name]["error"]["kind"] for name in hosts if name != "ok1"] == [
        "refused",
        "refused",
        "unreachable",
        "unreachable",
        "host-key",
        "host-key",
        "auth",
    ]
    assert document["hosts"]["dead2"]["error"]["message"] == (f"{lab.address(second)} port 2 refused the connection")
