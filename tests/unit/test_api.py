"""fleet.open: the verbs in a program, on this machine. docs/api.md is run on a lab, by tests/lab/test_api.py."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fleet
from fleet.errors import DeadlineError, InventoryError, PreflightError, UsageError
from fleet.events import Event, Finished, Notice, Output
from tests.command_lines import VERBS, command_of
from tests.pages import BLOCKS, PAGES, ROOT

OWN = set(dir(fleet.api.hosts.Hosts))
METHODS = {
    name: method
    for name, method in inspect.getmembers(fleet.api.Fleet, inspect.isfunction)
    if name not in OWN and not name.startswith("_")
}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fleet.api.Fleet:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(
        f"defaults: {{workdir: {tmp_path}/there}}\ngroups: {{one: a}}\n"
        "hosts: {a: &here {data_address: 127.0.0.1}, b: *here}\n"
    )
    return fleet.open(transport="local", connect_timeout=5)


def test_every_verb_of_the_list_is_there_and_no_other() -> None:
    assert sorted(name for verb in VERBS.values() for name in verb.api) == sorted(METHODS)
    for name in METHODS:
        assert f"`{name}(" in PAGES[ROOT / "docs/api.md"]


def test_parameters_are_called_as_the_options() -> None:
    """What is not is renamed on purpose: a positional, or what only one of both can say."""
    own = {"argv", "shell", "keep", "agree", "confirm", "ask_password", "password", "limit", "preflight"}
    own |= {"source", "data", "grace", "what", "script", "args", "options", "changed", "folder", "repeats", "run"}
    own |= {"claims", "attempt", "count", "each"}
    for verb in VERBS.values():
        for name in verb.api:
            options = {str(param.name) for param in command_of(next(v for v in VERBS if VERBS[v] is verb)).params}
            told = set(inspect.signature(METHODS[name]).parameters) - {"self"} - own
            assert told <= options, name


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    line = "import sys, fleet; print('fleet.api' in sys.modules); fleet.open; print('fleet.api' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"
    with pytest.raises(AttributeError):
        fleet.nothing  # noqa: B018


@pytest.mark.slow
def test_the_page_is_well_typed(tmp_path: Path) -> None:
    """As whoever has fleet installed sees it: py.typed says that it may be looked at."""
    pytest.importorskip("mypy")
    page = tmp_path / "page.py"
    page.write_text("".join(block.text for block in BLOCKS if block.page == "docs/api.md" and block.kind == "python"))
    line = [sys.executable, "-m", "mypy", "--config-file", os.devnull, "--follow-imports=silent", str(page)]
    # where fleet lies as it is in a clone, mypy does not find it by itself
    env = {**os.environ, "MYPYPATH": str(Path(fleet.__file__).parents[1])}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_exec(hosts: fleet.api.Fleet) -> None:
    report = hosts.exec(["sh", "-c", "echo it; exit 3"])
    assert report.exit_code == 3 and [bytes(result.stdout) for result in report.results] == [b"it\n", b"it\n"]
    assert [result.host for result in hosts.select("@one").exec(shell="true").results] == ["a"]
    slow = hosts.select("b").exec(["sleep", "1000"], timeout=0.2)
    assert slow.exit_code == 124 and isinstance(slow.results[0].error, DeadlineError)
    for argv in ("true", [], [""]):
        with pytest.raises(UsageError):
            hosts.exec(argv)


def test_events_are_heard(hosts: fleet.api.Fleet) -> None:
    heard: list[Event] = []
    hosts.plan.exec(["echo", "x"]).run(heard.append)
    assert sum(isinstance(event, Finished) for event in heard) == 2
    assert {event.data for event in heard if isinstance(event, Output)} == {b"x\n"}


def test_a_plan_does_nothing(hosts: fleet.api.Fleet, tmp_path: Path) -> None:
    plan = hosts.plan.sync(tmp_path)
    assert plan.describe()["to"] == dict.fromkeys("ab", f"{tmp_path}/there") and not (tmp_path / "there").exists()
    assert [host.name for host in plan.hosts] == ["a", "b"] and "deleted there" in str(list(plan.lines()))
    assert hosts.plan.launch("t.py", name="n").describe()["world_size"] == 2
    over_ssh = fleet.open().plan.setup_ssh(mesh=False)
    assert "steps" in str(over_ssh.describe()) and over_ssh.describe()["verify"] == "2 pairs"


def test_what_is_wrong_is_raised(hosts: fleet.api.Fleet, tmp_path: Path) -> None:
    with pytest.raises(InventoryError):
        hosts.select("c")
    with pytest.raises(InventoryError):
        fleet.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no transport"):
        fleet.open(transport="pigeon").exec(["true"])
    with pytest.raises(UsageError, match="speaks SSH itself"):
        hosts.setup_ssh()
    with pytest.raises(UsageError):
        hosts.launch("t.py", nproc_per_node=0)


def test_a_refusal_tells_what_it_is_for_in_words_of_programs(hosts: fleet.api.Fleet) -> None:
    begun = hosts.launch("nowhere.py", engine="command", workdir="/")
    planned = hosts.plan.launch("nowhere.py", engine="command", workdir="/")
    for refused in (begun.wait, lambda: list(begun), planned.run):
        with pytest.raises(PreflightError) as told:
            refused()
        finding = next(each for each in told.value.findings if each["id"] == "script-missing")
        assert finding["hosts"] == ["a", "b"] and finding["message"].startswith("a,b: no program nowhere.py"), finding
        assert f"\n  {finding['message']}\n    hint: {finding['remedy']}" in str(told.value)
        assert told.value.hint == "preflight=False starts in spite of them"


def test_check(hosts: fleet.api.Fleet) -> None:
    report = hosts.select("a").check(engine="command")
    assert list(report.views) == ["a"]


def test_a_run(hosts: fleet.api.Fleet, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    one = hosts.select("a")
    with one.launch("/bin/sh", ["-c", "echo rank $RANK; exit 4"], engine="command", nproc_per_node=1) as run:
        said = b"".join(event.data for event in run if isinstance(event, Output) and event.rank == 0)
    assert said == b"rank 0\n" and run.report.exit_code == 4 == run.wait().exit_code
    assert Path("runs", run.id, "summary.json").exists()
    with one.launch("/bin/sleep", ["600"], engine="command", grace=1) as run:
        for event in run:
            if isinstance(event, Notice) and "logs in" in event.message:
                break
    assert run.report.exit_code == 130, "left, it is stopped"
    refused = one.launch("./nothing-here", engine="command")
    with pytest.raises(PreflightError):
        list(refused)


def gone(pids: str) -> None:
    """What was killed still has to get the processor for its end, and who started it for burying it."""
    until = time.monotonic() + 60
    while left := [pid for pid in pids.split() if Path("/proc", pid, "exe").is_symlink()]:
        assert time.monotonic() < until, [Path("/proc", pid, "cmdline").read_bytes() for pid in left]
        time.sleep(0.05)


@pytest.mark.parametrize("verb", ["exec", "launch"])
def test_what_a_signal_handler_of_the_program_raises_leaves_nothing_running(
    hosts: fleet.api.Fleet, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "there").mkdir()
    line = f"echo $$ > {tmp_path}/pid; exec sleep 600"

    def ring(signum: int, frame: object) -> None:
        raise TimeoutError("the program's own")

    before = signal.signal(signal.SIGUSR1, ring)
    pid = tmp_path / "pid"

    def fire() -> None:
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    timer = threading.Thread(target=fire, daemon=True)
    try:
        timer.start()
        with pytest.raises(TimeoutError, match="the program's own"):
            if verb == "exec":
                hosts.select("a").exec(shell=line, grace=1)
            else:
                hosts.select("a").plan.launch("/bin/sh", ["-c", line], engine="command", grace=1).run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    gone(pid.read_text())


@pytest.mark.parametrize("what", ["ranks meet at", "logs in", "rank 0 on a", ""])
def test_a_run_that_nobody_can_be_told_of_is_stopped(hosts: fleet.api.Fleet, tmp_path: Path, what: str) -> None:
    """Whatever event it is that the program's own function fails over: before the start, after it, of a rank."""
    (tmp_path / "there").mkdir()

    def emit(event: Event) -> None:
        if what in event.message if isinstance(event, Notice) and what else isinstance(event, Output) and not what:
            raise LookupError("the program's own")

    line = f"echo $$ >> {tmp_path}/pids; echo rank; test $RANK = 0 || exec sleep 600"
    plan = hosts.select("a").plan.launch("/bin/sh", ["-c", line], engine="command", nproc_per_node=2, grace=1)
    with pytest.raises(LookupError, match="the program's own"):
        plan.run(emit)
    pids = tmp_path / "pids"
    gone(pids.read_text() if pids.exists() else "")
