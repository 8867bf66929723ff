"""Which run a word means, how a run stands, where its logs begin, and whose its folder is."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

import fleet
from fleet.answers.runs import RunsSeen
from fleet.cli.main import run
from fleet.cli.run.runs import show_runs
from fleet.errors import ConnectError, FleetError, UsageError
from fleet.model import Host, Inventory, Job, Report, Result
from fleet.ops.run.end.ends import run_end, stopped_by
from fleet.ops.run.find import attach, stacks, stop
from fleet.ops.run.find import bring as bringing
from fleet.ops.run.find.attach import report_of, watch
from fleet.ops.run.find.find import FoundRun, chosen
from fleet.ops.run.find.logs import is_whole
from fleet.ops.run.find.stop import note
from fleet.ops.run.follow import janitor
from fleet.ops.run.follow.follow import Following, Heard, Over
from fleet.ops.run.kept import local
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import headless, left_alone, local_runs, names, prunable, prune
from fleet.ops.run.kept.reader import LogsPlan, Reader, tail_offset
from fleet.ops.run.kept.word import choose, is_part_of_name
from fleet.ops.run.launch import run as launching
from fleet.ops.run.plan.plan import plan as make_plan
from fleet.ops.run.sessions import Sessions
from fleet.protocol.state import PROTOCOL, WRITER
from fleet.requests.launch import Launch
from fleet.requests.runs import Attach, Logs, Stacks, Stop
from fleet.rules.units import bytes_of
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport
from fleet.transport.program import Program
from tests.clock import HandClock
from tests.events import happened
from tests.unit.test_attempts import planned

ABOUT: Any = {**planned().record(0.0).about(), "hosts": {}}
IDS = [
    "train-20261122-120000-ab12",
    "train-20261121-120000-cd34",
    "train-big-20261120-120000-ef56",
    "odd-20261119-120000-0a1b",
]


def an_id(name: object) -> str:
    return f"{name}-20260101-000000-0000"


@pytest.mark.parametrize(
    "word, meant",
    [
        ("latest", IDS[0]),
        ("train", IDS[0]),
        ("train-big", IDS[2]),
        ("train-b", IDS[2]),
        ("train-20261121", IDS[1]),
        ("o", IDS[3]),
        (IDS[1], IDS[1]),
    ],
)
def test_a_word_means_a_run(word: str, meant: str) -> None:
    assert choose(word, IDS) == meant


@pytest.mark.parametrize(
    "word, runs, said",
    [
        ("train-2026", IDS, "2 runs begin so: train-20261122-120000-ab12, train-20261121-120000-cd34"),
        ("eval", IDS, "no run eval: known are train-20261122-120000-ab12, .* and 1 more"),
        ("latest", [], "no run latest: no run is known"),
        ("", IDS[:1], "RUN is empty"),
    ],
)
def test_what_means_none_or_many_is_said(word: str, runs: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choose(word, runs)


@pytest.mark.parametrize(
    "word, part",
    [("tr", True), ("train", False), ("train-2026", False), ("latest", False), (IDS[0], False), ("train-b", False)],
)
def test_the_first_letters_of_a_name_may_mean_something_else(word: str, part: bool) -> None:
    assert is_part_of_name(word, IDS[0]) is part


def part(state: str = "running", *, alive: bool = True, **status: Any) -> Any:
    given = {
        "run": "r",
        "protocol": PROTOCOL,
        "attempt": 0,
        "host": "n",
        "node_rank": 0,
        "ranks": [0],
        "cwd": None,
        "about": None,
        "lease": None,
        "grace": 1.0,
    }
    return {
        **given,
        "node_timeout": 15.0,
        "status": {"state": state, **status},
        "alive": alive,
        "up": int(state == "running"),
        "ended": [],
        "silent": None,
        "last": "",
        "unheard": None,
        "term": 0,
    }


@pytest.mark.parametrize(
    "parts, state",
    [
        ([part(), part()], "running"),
        ([part(), part("exited", engine_status=0)], "running"),
        ([part(), part("stopping")], "stopping"),
        ([part(), part(alive=False)], "lost"),
        ([part("exited", engine_status=0), part("exited", engine_status=0)], "done"),
        ([part("exited", engine_status=0), part("exited", engine_status=1)], "failed"),
        ([part("stopped", cause="asked", reason="rank 1 on h1 failed"), part("exited", engine_status=1)], "failed"),
        ([part("stopped", cause="lease")], "failed"),
        ([part("stopped", cause="asked", end=stopped_by("ada@head")), part("exited", engine_status=1)], "stopped"),
        ([part("stopped", cause="asked", end=run_end("lost", "h9 was lost", 122, "h9"))], "failed"),
        ([part("stopped", cause="asked", end=run_end("interrupt", "of a name", 130))], "stopped"),
    ],
)
def test_how_a_run_stands(parts: list[Any], state: str) -> None:
    hosts = {f"h{n}": Host(f"h{n}", f"h{n}") for n in range(len(parts))}
    run = FoundRun("r", hosts, dict(zip(hosts, parts, strict=True)))
    assert run.state == state
    assert run.seen.state == state and run.record(Path("runs")).world_size == len(parts)


END = {"incomplete_logs": ["b"], "first_failure": {"host": "b"}}
LONG = "x" * (3 << 20) + "\nend\n"


@pytest.mark.parametrize("text", ["", "one", "one\n", "one\ntwo", "one\ntwo\nthree\n", "\n\n\n", LONG])
@pytest.mark.parametrize("lines", [0, 1, 2, 5])
def test_the_last_lines_of_a_log(tmp_path: Path, text: str, lines: int) -> None:
    path = tmp_path / "rank0.out"
    path.write_text(text)
    last = text.splitlines(True)[-lines:] if lines else []
    assert text[tail_offset(path, lines) :] == "".join(last)


HOLD = """
import sys
from pathlib import Path
from fleet.ops.run.kept.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
print(folder.hold(helper=True), flush=True)
sys.stdin.read()
"""


def test_one_process_writes_to_a_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "r")
    assert folder.held and RunFolder.open(tmp_path / "runs", "r").held is False
    assert folder.holder() == {"pid": os.getpid(), "helper": False, "machine": gethostname()}
    folder.release()
    argv = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdin
        assert other.stdout.readline() == "True\n"
        assert folder.hold(0.2) is False and folder.holder()["pid"] == other.pid and folder.holder()["helper"]
        other.stdin.close()
        assert folder.hold(120.0)
    folder.release()


def test_attach_without_a_run_ends_its_events_with_the_summary(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h").write_text("localhost\n")
    words = ["-i", str(tmp_path / "h"), "--transport", "local", "attach", "nosuch-run", "--json"]
    assert run([*words, "--runs-dir", str(tmp_path)]) == 2
    *_, last = map(json.loads, capfd.readouterr().out.splitlines())
    assert last["event"] == "summary" and last["error"]["message"].startswith("no run nosuch-run")


def test_a_command_line_that_is_refused_is_the_summary_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As docs/json.md has it: the version is told of events, and there are none."""
    monkeypatch.chdir(tmp_path)
    words = ["--json", "--transport", "local", "launch"]
    assert run([*words, "t.py"]) == 121, "no inventory"
    (tmp_path / "fleet.yaml").write_text("hosts: [a]\n")
    assert run([*words, "--nproc-per-node", "x", "t.py"]) == 2
    assert [json.loads(line)["event"] for line in capfd.readouterr().out.splitlines()] == ["summary", "summary"]


def test_old_runs_of_this_machine_go_but_for_the_newest(tmp_path: Path) -> None:
    begun = time.time() - 86400 * 9
    for number, code in enumerate([0, 1, 130, None]):
        folder = tmp_path / an_id(f"r{number}")
        folder.mkdir()
        (folder / "events.jsonl").write_text("{}\n")
        (folder / "run.json").write_text(json.dumps({"started": begun + number * 86400, "engine": "torchrun"}))
        if code is not None:
            (folder / "summary.json").write_text(json.dumps({"exit_code": code}))
    found = local_runs(tmp_path)
    (tmp_path / an_id("r2") / "summary.json").write_text(json.dumps({"exit_code": 130, "first_failure": {"rank": 0}}))
    assert local_runs(tmp_path)[1].state == "failed", "its rank exited so, nobody stopped it"
    assert [(run.run, run.state) for run in found] == [
        (an_id("r3"), "open"),
        (an_id("r2"), "stopped"),
        (an_id("r1"), "failed"),
        (an_id("r0"), "done"),
    ]
    assert [run.run for run in prunable(found, 1, 0)] == [an_id("r1"), an_id("r0")], "one that is not over is not old"
    assert [run.run for run in prunable(found, 0, 8.5)] == [an_id("r0")]
    sized = [replace(run, size=10) for run in found]
    for size, gone in (
        (40, []),
        (39, [an_id("r0")]),
        (20, [an_id("r1"), an_id("r0")]),
        (0, [an_id("r2"), an_id("r1"), an_id("r0")]),
    ):
        assert [run.run for run in prunable(sized, 0, 0, size)] == gone
    assert [run.run for run in prunable(sized, 2, 0, 0)] == [an_id("r0")]
    (tmp_path / an_id("r0")).chmod(0o500)
    assert local_runs(tmp_path)[-1].state == "done" and not (tmp_path / an_id("r0") / ".lock").exists(), (
        "who looks writes nothing"
    )
    (tmp_path / an_id("r0")).chmod(0o700)
    held = RunFolder.open(tmp_path, an_id("r0"))
    assert local_runs(tmp_path)[-1].state == "followed" and len(prunable(local_runs(tmp_path), 0, 0)) == 2
    with pytest.raises(UsageError, match="a process follows it"):
        prune(found[-1])
    held.release()
    prune(found[-1])
    assert len(local_runs(tmp_path)) == 3


def test_a_run_that_ends_while_it_is_looked_at_is_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows it writes its summary and lets go, after the documents were read or before."""
    folder = RunFolder.create(tmp_path, an_id("r-1"))
    folder.event(happened("version"))
    followed, read = local.followed, local.read_object

    def end() -> None:
        if folder.held:
            folder.write_json("summary.json", {"exit_code": 0})
            folder.release()

    monkeypatch.setattr(local, "followed", lambda path: (followed(path), end())[0])
    monkeypatch.setattr(local, "read_object", lambda path: (read(path), end())[0])
    assert [run.state for run in local_runs(tmp_path)] == ["followed"]
    assert [run.state for run in local_runs(tmp_path)] == ["done"]


def test_what_goes_while_runs_are_looked_at_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document's next version, which gets its name; a whole run, which is pruned."""
    folder = RunFolder.create(tmp_path, an_id("r-1"))
    folder.event(happened("version"))
    folder.write_json("run.json", {"lease": 36000.0})
    folder.release()
    size = local_runs(tmp_path)[0].size
    found = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: [*found(path, pattern), path / "summary.json.new"])
    assert local_runs(tmp_path)[0].size == size > 0

    def pruned(path: Path) -> dict[str, Any]:
        shutil.rmtree(folder.path)
        return {"lease": 36000.0}

    monkeypatch.setattr(local, "read_object", pruned)
    assert list(headless(tmp_path)) == []


def test_two_launches_make_the_first_runs_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(Path, "exists", lambda path: False)  # a moment ago
    RunFolder.create(tmp_path / "runs", an_id("r")).release()


def test_a_run_that_silent_hosts_may_know_is_no_typing_error() -> None:
    silent = Result("n2", False, error=ConnectError("no answer", host="n2", hint="is it up?"))
    with pytest.raises(ConnectError, match="no run x.*no answer from n2") as caught:
        chosen("x", [], [Result("n1", True), silent])
    assert caught.value.exit_code == 122 and caught.value.hint == "is it up?"
    with pytest.raises(UsageError):
        chosen("x", [], [Result("n1", True)])


def found(run_id: str, state: str, started: float = 1.0, nnodes: int = 1) -> FoundRun:
    about = {**ABOUT, "started": started, "nnodes": nnodes, "world_size": nnodes, "owner": "ada@head", "master": "h:1"}
    return FoundRun(run_id, {"h": Host("h", "h")}, {"h": {**part(state), "run": run_id, "about": about}})


@pytest.mark.parametrize("word", ["latest", "train"])
def test_a_run_that_has_ended_is_not_stopped_for_one_that_a_silent_host_may_have(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    RunFolder.create(tmp_path, IDS[0]).event(happened("version"))
    silent = Result("n2", False, error=ConnectError("no answer", host="n2", hint="is it up?"))
    monkeypatch.setattr(stop, "find", lambda *_, **__: ([found(IDS[0], "exited")], (silent,)))
    runtime = Runtime(LocalTransport(), 1, lambda _: None)
    inventory = Inventory((Host("h", "h"), Host("n2", "n2")))
    with pytest.raises(ConnectError, match=f"{IDS[0]} has ended, and no live run is known; no answer from n2"):
        stop.run(stop.StopPlan(inventory, Stop(run=word, grace=None, runs_dir=tmp_path)), runtime)
    assert (
        stop.run(stop.StopPlan(inventory, Stop(run=IDS[0], grace=None, runs_dir=tmp_path)), runtime).data["run"]
        == IDS[0]
    )


def test_ranks_of_a_node_that_nobody_has_heard_of_are_not_up(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("ps", (), 0, answer=RunsSeen([found("r", "running", nnodes=2).seen]))
    with click.Context(click.Command("ps")):
        show_runs(report, every=False)
    assert " 1/2 " in capsys.readouterr().out


def test_no_live_run_needs_no_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "fleet.yaml").write_text("hosts: {me: {}}\n")
    folder = RunFolder.create(Path("runs"), IDS[0])
    folder.event(happened("version"))
    folder.write_json("run.json", {"lease": 36000.0})
    folder.release()
    os.utime(folder.path / "events.jsonl", (time.time() - 60, time.time() - 60))
    line = ["--transport", "local", "ps"]
    assert run([*line, "-w", "me"], typed=True) == 0
    assert "without its head" in capsys.readouterr().err, "other hosts may have it"
    assert run(line, typed=True) == 0
    said = capsys.readouterr()
    assert "no live run" in said.out and said.err == ""


def test_a_helper_that_waits_for_a_host_leaves_the_logs_to_others(tmp_path: Path) -> None:
    """Who attaches would end it, and the host were never stopped; a second helper would write beside it."""
    host, tried = Host("n1", "n1"), []

    class Unreachable(LocalTransport):
        def connect(self, host: Host, cancel: Cancel) -> Any:
            with_logs = RunFolder(tmp_path)
            tried.append(with_logs.hold())
            with_logs.release()
            raise ConnectError("no answer", host=host.name)

    folder = RunFolder(tmp_path)
    said, complete = janitor.clean(host, "r", 1.0, Unreachable(), 60.0, folder, clock=HandClock(0.0))
    assert len(tried) > 1 and all(tried) and not complete and said.startswith("given up")


def test_a_helper_whose_host_goes_again_lets_the_logs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a week nobody could attach, and no other host's logs were brought."""
    monkeypatch.setattr(janitor, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(janitor, "LOOK_SECONDS", 0.05)

    class Gone(LocalTransport):
        def connect(self, host: Host, cancel: Cancel) -> Any:
            raise ConnectError("no answer", host=host.name)

    host, folder = Host("n1", "n1"), RunFolder(tmp_path)
    session = LocalTransport().connect(host, Cancel())
    stopping = Program(session, janitor.STOP, {"run": "r", "grace": 0, "reason": "given up"})
    session.close()
    assert not janitor.fetch("r", stopping, Gone(), time.monotonic() + 86400.0, folder, 0)
    assert folder.hold()
    folder.release()


def test_a_summary_may_say_that_logs_are_missing(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    assert not is_whole(summary)
    for text, whole in (('{"incomplete_logs": []}', True), ('{"incomplete_logs": ["n1"]}', False), ("[", False)):
        summary.write_text(text)
        assert is_whole(summary) is whole


def test_logs_that_come_late_complete_those_of_their_own_attempt_only(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "r")
    folder.begin(1)
    folder.write_json("summary.json", {"incomplete_logs": ["n1"]})
    folder.release()
    janitor.correct_summary(folder, ["n1"], 0)
    assert not is_whole(folder.path / "summary.json"), "of n1's first attempt"
    janitor.correct_summary(folder, ["n1"], 1)
    assert is_whole(folder.path / "summary.json")


@pytest.mark.parametrize(("failure", "ok", "code"), [(None, True, 0), (None, False, 1), ({"rank": 1}, True, 1)])
def test_a_run_that_lacked_nothing_but_logs_is_done_once_they_are_there(
    failure: object, ok: bool, code: int, tmp_path: Path
) -> None:
    folder = RunFolder.create(tmp_path, "r")
    told = {"incomplete_logs": ["n1"], "first_failure": failure, "hosts": {"n1": {"ok": ok}}}
    folder.write_json("summary.json", {**told, "ok": False, "exit_code": 1})
    folder.release()
    janitor.correct_summary(folder, ["n1"], 0)
    assert json.loads((folder.path / "summary.json").read_text())["exit_code"] == code


def test_the_summary_of_a_slow_head_is_corrected_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rounds that takes."""
    monkeypatch.setattr(janitor, "HANDOVER_SECONDS", 60.0)
    head = RunFolder.create(tmp_path, "r")
    helper = threading.Thread(target=janitor.correct_summary, args=[RunFolder(head.path), ["n1"], 0])
    helper.start()
    helper.join(0.5)
    head.write_json("summary.json", {"incomplete_logs": ["n1", "n2"]})
    head.release()
    helper.join(60)
    assert json.loads((head.path / "summary.json").read_text()) == {"incomplete_logs": ["n2"]}


def test_a_helper_brings_logs_once_a_slow_head_has_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is through only when it has waited for its other hosts."""
    head = RunFolder.create(tmp_path, "r")
    monkeypatch.setattr(janitor, "HANDOVER_SECONDS", 0.0)
    monkeypatch.setattr(janitor, "LOOK_SECONDS", 0.05)
    brought: list[bool] = []

    class Brings(threading.Thread):
        silent_since = None

        def __init__(self, *args: Any, **_: object) -> None:
            super().__init__(target=lambda: brought.append(head.held))

    monkeypatch.setattr(janitor, "Follower", Brings)
    program = cast(Program, SimpleNamespace(host=Host("n1", "n1"), session=SimpleNamespace(close=lambda: None)))
    until = time.monotonic() + 600
    args = ["r", program, LocalTransport(), until, RunFolder(head.path), 0]
    helper = threading.Thread(target=janitor.fetch, args=args)
    helper.start()
    helper.join(0.5)
    head.release()
    helper.join(60)
    assert brought == [False], brought


def test_a_live_run_is_meant_before_a_newer_one_that_has_ended() -> None:
    runs = [found(IDS[0], "exited", 3.0), found(IDS[1], "running", 1.0), found(IDS[2], "running", 2.0)]
    for word, meant in (("latest", IDS[2]), ("train", IDS[1]), (IDS[0], IDS[0]), ("train-20261122", IDS[0])):
        assert chosen(word, runs, []).run_id == meant


def test_a_run_that_was_launched_here_is_meant_before_what_a_node_tells_of(tmp_path: Path) -> None:
    """A node may tell of a run that never was, and say of it that it began in a hundred years."""
    for number in (1, 2):
        folder = RunFolder.create(tmp_path, IDS[number])
        folder.write_json("run.json", {})
        folder.be_latest()
        folder.release()
    RunFolder.create(tmp_path, IDS[3]).release()  # attached to
    runs = [found(IDS[0], "running", 5e9), found(IDS[1], "running", 2.0), found(IDS[2], "running", 1.0)]
    assert chosen("latest", runs, [], tmp_path).run_id == IDS[2], "the last that began, by whatever clock"
    assert chosen("train", runs, [], tmp_path).run_id == IDS[1] and chosen(IDS[0], runs, []).run_id == IDS[0]
    ended = [*runs[:1], found(IDS[1], "exited", 2.0), found(IDS[3], "running", 1.0)]
    assert chosen("latest", ended, [], tmp_path).run_id == IDS[0], "what is live is meant first, wherever it began"


def test_of_the_runs_here_one_that_is_followed_is_meant_first(tmp_path: Path) -> None:
    for number, ended in enumerate([False, True, False]):
        folder = RunFolder.create(tmp_path, an_id(f"r{number}"))
        folder.event(happened("version"))
        folder.write_json("run.json", {"started": float(number)})
        if ended:
            folder.write_json("summary.json", {})
        folder.release()
    held = RunFolder.open(tmp_path, an_id("r0"))
    assert names(tmp_path) == [an_id("r2"), an_id("r1"), an_id("r0")]
    assert names(tmp_path, followed_first=True) == [an_id("r0"), an_id("r2"), an_id("r1")]
    held.release()


def test_a_run_that_never_began_is_not_the_latest(tmp_path: Path) -> None:
    """As one that was refused in its start: there is nothing to be seen of it."""
    for number, told in enumerate([{}, {}, {"error": {"kind": "preflight"}}]):
        folder = RunFolder.create(tmp_path, an_id(f"r{number}"))
        folder.event(happened("version"))
        folder.write_json("run.json", {"started": float(number)})
        folder.write_json("summary.json", {"exit_code": 123, **told})
        folder.release()
    assert names(tmp_path) == [an_id("r1"), an_id("r0"), an_id("r2")] and choose("latest", names(tmp_path)) == an_id(
        "r1"
    )
    assert [run.run for run in local_runs(tmp_path)] == [an_id("r2"), an_id("r1"), an_id("r0")], (
        "they are listed by their time"
    )


def test_the_engine_of_a_run_that_has_no_document_is_that_of_its_events(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, told in ((an_id("other"), {"engine": "accelerate"}), (an_id("unknown"), {})):
        folder = RunFolder.create(tmp_path, name)
        folder.event(happened("attached", **told))
        folder.release()
    assert {each.run: each.engine for each in local_runs(tmp_path)} == {
        an_id("other"): "accelerate",
        an_id("unknown"): None,
    }
    assert run(["runs", "--runs-dir", str(tmp_path)]) == 0
    told = capfd.readouterr().out
    assert "accelerate" in told and "?" not in told, told


@pytest.mark.parametrize("machine, said", [(gethostname(), "of this machine"), ("login2", "of login2")])
def test_who_follows_a_run_already_is_named_with_the_machine(machine: str, said: str, tmp_path: Path) -> None:
    held = RunFolder.create(tmp_path, "r")
    (held.path / ".lock").write_text(json.dumps({"pid": 4242, "helper": machine == "login2", "machine": machine}))
    with pytest.raises(UsageError, match=f"process 4242 {said} follows r already"):
        attach.take(FoundRun("r", {}, {}), tmp_path)
    held.release()


def test_a_helper_that_ends_just_now_is_waited_for(tmp_path: Path) -> None:
    """As the run is over: it is not there any more when it is told to end, its lock is a moment later."""
    held = RunFolder.create(tmp_path, "r")
    gone = {"pid": 1 << 30, "helper": True, "machine": gethostname()}
    (held.path / ".lock").write_text(json.dumps(gone))
    threading.Timer(0.3, held.release).start()
    folder = attach.take(FoundRun("r", {}, {}), tmp_path)
    assert folder.held and folder.holder()["pid"] == os.getpid()
    folder.release()
    assert folder.holder() == {}, "no number that may be another process's"


def test_who_only_looks_whether_a_run_is_followed_follows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "MOMENT_SECONDS", 60.0)
    RunFolder.create(tmp_path, "r").release()
    with open(tmp_path / "r" / WRITER) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        threading.Timer(0.3, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        folder = attach.take(FoundRun("r", {}, {}), tmp_path)
        assert folder.held
        folder.release()


@pytest.mark.parametrize("patience", [60.0, 0.2])
def test_logs_go_on_when_another_takes_a_run_over(
    patience: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is over, or nobody follows it for a while."""
    monkeypatch.setattr(bringing, "LEFT_SECONDS", patience)
    first, steps = RunFolder.create(tmp_path, "r"), 0
    second = RunFolder(first.path)

    def poll() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            first.release()
        elif steps == 6 and patience > 1.0:
            assert second.hold()
        elif steps == 9 and patience > 1.0:
            second.write_json("summary.json", {})
            second.release()

    bringing.wait_for(RunFolder(first.path), Runtime(LocalTransport()), poll)
    assert steps >= (9 if patience > 1.0 else 4)
    assert not local.followed(first.path)


def test_a_program_prunes_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        folder = RunFolder.create(tmp_path, an_id(f"r{number}"))
        folder.event(happened("version"))
        folder.write_json("run.json", {"started": float(number)})
        folder.write_json("summary.json", {"exit_code": 0})
        folder.release()
    assert [run.run for run in fleet.runs(tmp_path)] == [an_id("r2"), an_id("r1"), an_id("r0")]
    assert [run.run for run in fleet.runs(tmp_path, prune=True, keep=2)] == [an_id("r0")]
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "--max-size", "1TB", "-y"]) == 0
    assert len(fleet.runs(tmp_path)) == 2 and run(["runs", "--max-size", "big"]) == 2
    chosen = ["--keep", "0", "--days", "0.5", "--max-size", "1", "--runs-dir", str(tmp_path)]
    assert run(["runs", "--prune", *chosen]) == 2  # what is to be typed lets go no more than was asked for
    assert f"hint: fleet runs --prune -y {' '.join(chosen)}; --dry-run" in capfd.readouterr().err
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "--max-size", "1", "-y"]) == 0
    assert "removed: the logs of 2 runs" in capfd.readouterr().err
    assert fleet.runs(tmp_path) == []


def test_a_run_that_cannot_be_removed_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path, an_id("r"))
    folder.event(happened("version"))
    folder.write_json("summary.json", {"exit_code": 0})
    folder.release()
    (folder.path / WRITER).unlink()
    (folder.path / WRITER).mkdir()  # as in a folder that cannot be written, for root too
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "-y"]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == f"error: {folder.path / WRITER}: Is a directory"


@pytest.mark.parametrize(
    "text, size",
    [("50GB", 50e9), ("1.5 GiB", 1.5 * 2**30), ("2t", 2e12), ("7", 7), ("", None), ("GB", None), ("-1", None)],
)
def test_a_size_in_words(text: str, size: float | None) -> None:
    assert bytes_of(text) == size


def test_a_run_that_lost_its_head_here_is_told_of_while_its_lease_lasts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "t-20261122-101500-0001")
    folder.event(happened("running"))
    folder.be_latest()
    folder.write_json("run.json", {"lease": 60.0})

    def said(ago: float) -> list[str]:
        now = time.time()
        os.utime(folder.path / "events.jsonl", (0, now - ago))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: now)  # a busy machine takes its own seconds
            return [left_alone(run).message for run in headless(tmp_path / "runs")]

    assert said(20.0) == [], "we follow it"
    folder.release()
    assert said(20.0) == [
        f"run {folder.path.name} has been without its head for 20 s; if it goes on, its nodes end it after 60 s"
    ]
    assert said(0.0) == said(61.0) == []
    folder.sign()
    assert time.time() - (folder.path / "events.jsonl").stat().st_mtime < 60
    note(folder, "stopped by ada@head", 10.0)
    assert said(20.0) == [], "'fleet stop' was typed here"
    folder.event(happened("attempt"))
    assert len(said(20.0)) == 1, "what was stopped was another attempt"
    folder.event(happened("running"))
    folder.event(happened("detached"))
    (text,) = said(20.0)
    assert text == f"run {folder.path.name} has been unattended for 20 s: a process of this machine leads it again"
    note(RunFolder(tmp_path / "runs/elsewhere"), "a run that another head started", 10.0)


def test_a_run_that_could_not_start_is_over_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ConnectError("no answer", host="b", kind="timeout")
    error.hosts = {"a": None, "b": error}
    draft = make_plan(
        Inventory((Host("a", "a"), Host("b", "b"))), Job("t.py"), Launch("t.py", runs_dir=tmp_path), IDS[0]
    )

    def start(*_: Any) -> None:
        raise error

    monkeypatch.setattr(launching, "preflight_all", lambda draft, _: (draft, {}))
    monkeypatch.setattr(launching, "start_all", start)
    with pytest.raises(ConnectError):
        launching.run(draft, Runtime(LocalTransport(), 2, lambda event: None))
    (found,) = local_runs(tmp_path)
    assert (found.state, found.exit_code, len(prunable([found], 0, 0))) == ("failed", 122, 1), found
    told = json.loads((tmp_path / IDS[0] / "summary.json").read_text())
    assert told["stopped"] == "no answer" and told["hosts"]["b"]["error"]["kind"] == "timeout", told


def test_who_looks_on_is_told_as_loudly_as_who_follows(tmp_path: Path) -> None:
    held, seen = RunFolder.create(tmp_path, "r"), set()
    runtime = Runtime(LocalTransport(), 1, lambda event: seen.add((event.message, event.level)))  # type: ignore[attr-defined]
    plan = LogsPlan(Inventory(()), Logs(run="r", runs_dir=tmp_path, tail=0))
    looking = threading.Thread(target=watch, args=(plan, RunFolder(held.path), runtime))
    looking.start()
    until = time.monotonic() + 300
    while len(seen) < 3 and time.monotonic() < until:  # what was there before it began to look is not told
        held.notice("error", "gpu1 is full", happened("full"), "gpu1")
        held.notice("warning", "all are silent", happened("alone"))
        held.event(happened("stalled"), message="all are still")
        time.sleep(0.05)
    runtime.detach.set()
    looking.join()
    held.release()
    assert seen == {("gpu1 is full", "error"), ("all are silent", "warning"), ("all are still", "info")}, seen


def test_a_whole_runs_logs_are_shown_without_an_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    folder = RunFolder.create(Path("runs"), "t-20261122-101500-0001")
    for host in ("gpu1", "gpu2"):
        folder.node(host).write("rank0.out", 0, b"of %s\n" % host.encode())
    folder.event(happened("running"))
    folder.write_json("run.json", {"engine": "torchrun"})
    folder.write_json("summary.json", {"incomplete_logs": []})
    folder.release()
    both, nothing = "[gpu1:0] of gpu1\n[gpu2:0] of gpu2\n", "no inventory found; looked for: -i"
    for words, code, out, err in (
        (["logs", "t"], 0, both, ""),
        (["logs", "-f", folder.path.name], 0, both, ""),
        (["logs", "t", "--host", "gpu2"], 0, "[gpu2:0] of gpu2\n", ""),
        (["logs", "t", "-x", "gpu2"], 0, "[gpu1:0] of gpu1\n", ""),
        (["logs", "t", "--host", "gpu3"], 121, "", "no host 'gpu3' in the inventory"),
        (["logs", "t", "--dry-run"], 0, "shows the logs of run t\n", ""),
        (["-i", "nowhere", "logs", "t"], 121, "", "no inventory 'nowhere' (named by -i)"),
        (["logs", "t", "--since", "5m"], 121, "", nothing),
        (["logs", "-f", "t"], 121, "", nothing),  # it may be live elsewhere, under this name
        (["logs", "u"], 121, "", nothing),
    ):
        got, told = run(words), capfd.readouterr()
        assert (got, told.out) == (code, out) and (err in told.err if err else not told.err), (words, told)
    folder.write_json("summary.json", {"incomplete_logs": ["gpu2"]})
    assert run(["logs", "t"]) == 121


def test_a_broken_document_of_a_run_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(Path("runs"), "t-20261122-101500-0001")
    folder.node("gpu1").write("rank0.out", 0, b"one\n")
    folder.event(happened("running"))
    folder.write_json("summary.json", {"incomplete_logs": [], "exit_code": 0})
    folder.release()
    (tmp_path / "hostfile").write_text("gpu1\n")
    assert run(["runs"]) == run(["logs", "t"]) == 0 and not capfd.readouterr().err, "it was started elsewhere"
    (folder.path / "run.json").write_text('{"engine": ')
    wrong = f"runs/{folder.path.name}/run.json cannot be read: Expecting value: line 1 column 12 (char 11)"
    for words in (["runs"], ["logs", "t"]):
        code, told = run(words), capfd.readouterr()
        assert code == 0 and told.err == f"warning: run {folder.path.name}: {wrong}\n", told
    assert [each.broken for each in fleet.runs()] == [wrong]
    (folder.path / "run.json").unlink()
    (folder.path / "summary.json").write_text("[]")
    assert run(["runs"]) == 0 and "summary.json cannot be read: it holds no JSON object" in capfd.readouterr().err


def test_the_logs_of_an_earlier_attempt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    folder = RunFolder.create(runs, "t-20261122-101500-0001")
    for attempt in (0, 1, 2):
        folder.begin(attempt)
        folder.node("gpu1").write("rank0.out", 0, b"of attempt %d\n" % attempt)
    folder.event(happened("running"))
    folder.write_json("summary.json", {"incomplete_logs": []})
    folder.release()
    (tmp_path / "h").write_text("gpu1\n")
    words = ["-i", str(tmp_path / "h"), "logs", "t", "--runs-dir", str(runs)]
    for more, code, said in (
        ([], 0, "of attempt 2"),
        (["--attempt", "0"], 0, "of attempt 0"),
        (["--attempt", "2"], 0, "of attempt 2"),
        (["--attempt", "3"], 2, "has no logs of an attempt 3 here\n  hint: its last attempt is 2, its first one 0"),
        (["-f", "--attempt", "0"], 2, "--attempt goes with neither --follow nor --since"),
    ):
        assert run([*words, *more]) == code
        assert said in "".join(capfd.readouterr())


def test_logs_of_a_rank_that_is_none_and_of_chosen_hosts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    folder = RunFolder.create(runs, "t-20261122-101500-0001")
    for rank, host in enumerate(("gpu1", "gpu2")):
        folder.node(host).write(f"rank{rank}.out", 0, b"of rank %d\n" % rank)
    folder.event(happened("running"))
    folder.write_json("run.json", {"world_size": 3})
    folder.write_json("summary.json", {"incomplete_logs": []})
    folder.release()
    (tmp_path / "h").write_text("gpu1\ngpu2\n")

    def said(*more: str, code: int = 0) -> tuple[str, str]:
        words = ["-i", str(tmp_path / "h"), "logs", "t-20261122-101500-0001", "--runs-dir", str(runs)]
        assert run([*words, *more]) == code
        return capfd.readouterr()

    assert said() == ("[gpu1:0] of rank 0\n[gpu2:1] of rank 1\n", "")
    assert said("-w", "gpu2") == said("-x", "gpu1") == said("--host", "gpu2") == ("[gpu2:1] of rank 1\n", "")
    none = "warning: run t-20261122-101500-0001: no log of rank 2 is here, but of ranks 0-1\n"
    assert said("--rank", "2") == ("", none)
    assert said("--rank", "1,2") == ("[gpu2:1] of rank 1\n", none)
    assert said("--rank", "1", "--host", "gpu1") == (
        "",
        none.replace("rank 2", "rank 1").replace("ranks 0-1", "rank 0"),
    )
    for ranks in ("9", "1,9"):
        no_such = ("", "error: run t-20261122-101500-0001 has no rank 9\n  hint: it has ranks 0-2\n")
        assert said("--rank", ranks, code=2) == said("-f", "--rank", ranks, code=2) == no_such
    assert said("--rank", "1") == ("of rank 1\n", "")


def test_what_is_shown_begins_where_the_nodes_said_and_another_attempt_as_a_whole(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "t-20261122-101500-0001")
    for host in ("gpu1", "gpu2"):
        folder.node(host).write("rank0.out", 0, b"early late")
    said: list[bytes] = []
    plan = LogsPlan(Inventory(()), Logs(run="t", runs_dir=tmp_path, follow=True))
    reader = Reader(folder.path, plan, lambda output: said.append(output.data), {"gpu1": {"rank0.out": 6}})
    reader.poll()
    folder.begin(1)
    folder.node("gpu1").write("rank0.out", 0, b"of another")
    reader.poll()
    assert said == [b"late", b"of another"], "and nothing of a host that could not say"


def test_what_an_attempt_wrote_last_is_shown_though_the_next_one_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its logs are set aside while they are looked through."""
    folder = RunFolder.create(tmp_path, "t-20261122-101500-0001")
    folder.node("gpu1").write("rank0.out", 0, b"early ")
    said: list[bytes] = []
    reader = Reader(
        folder.path, LogsPlan(Inventory(()), Logs(run="t", runs_dir=tmp_path)), lambda output: said.append(output.data)
    )
    reader.poll()
    folder.node("gpu1").write("rank0.out", 6, b"late")
    stat = Path.stat

    def begin(path: Path, **more: Any) -> os.stat_result:
        if path.name == "rank0.out":
            monkeypatch.setattr(Path, "stat", stat)
            folder.begin(1)
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", begin)
    reader.poll()
    folder.node("gpu1").write("rank0.out", 0, b"of another")
    reader.poll()
    reader.poll()
    assert said == [b"early ", b"late", b"of another"]


def test_who_attaches_to_a_run_that_is_over_is_told_what_its_head_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes, of which one is gone, would tell that another one failed."""
    here = Host("a", "a")
    parts = {"a": part("stopped", cause="asked", reason="b was lost")}
    found = FoundRun(IDS[0], {"a": here}, parts)  # type: ignore[arg-type]
    monkeypatch.setattr(attach, "find", lambda *_, **__: ([found], ()))
    folder = RunFolder.create(tmp_path, IDS[0])
    folder.write_json(
        "summary.json", {**Report("launch", (Result("a", True), Result("b", False)), 122).as_json(), **END}
    )
    folder.event(happened("version"))
    folder.release()
    before, said = (tmp_path / IDS[0] / "summary.json").read_text(), []
    runtime = Runtime(LocalTransport(), 1, said.append)
    report = attach.run(attach.AttachPlan(Inventory((here,)), Attach(run="latest", runs_dir=tmp_path)), runtime)
    assert report.exit_code == 122 and report.data["first_failure"]["host"] == "b", report
    assert (tmp_path / IDS[0] / "summary.json").read_text() == before
    assert [notice.message for notice in said] == [
        f"run {IDS[0]}: failed, 1 rank on 1 node, logs in {tmp_path / IDS[0]}"
    ]


def test_who_attaches_as_a_run_begins_follows_all_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = (Host("a", "a"), Host("b", "b"))
    about = {**ABOUT, "nnodes": 2, "started": time.time()}

    def known(*names: str) -> tuple[list[FoundRun], tuple[Result, ...]]:
        parts = {name: {**part(), "about": about} for name in names}
        run = FoundRun(IDS[0], {host.name: host for host in hosts}, parts)  # type: ignore[arg-type]
        return [run], tuple(Result(host.name, True) for host in hosts)

    RunFolder.create(tmp_path, IDS[0]).event(happened("version"))
    answers = [known("a"), known("a"), known("a", "b")]
    monkeypatch.setattr(attach, "find", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(attach, "ASK_AGAIN_SECONDS", 0.0)
    runtime = Runtime(LocalTransport())
    plan = attach.AttachPlan(Inventory(hosts), Attach(run="latest", runs_dir=tmp_path))
    found, _ = attach._known(plan, runtime, Sessions(runtime))
    assert list(found.parts) == ["a", "b"]
    about["started"], answers[:] = time.time() - 3600.0, [known("a")]
    assert list(attach._known(plan, runtime, Sessions(runtime))[0].parts) == ["a"], "of an old one no other comes"


@pytest.mark.parametrize("verb", ["attach", "stacks"])
def test_a_run_of_another_protocol_is_left_to_the_fleet_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    known = FoundRun(IDS[0], {"n": Host("n", "n")}, {"n": {**part(), "run": IDS[0], "protocol": PROTOCOL + 1}})
    module: Any = {"attach": attach, "stacks": stacks}[verb]
    monkeypatch.setattr(module, "find", lambda *_, **__: ([known], (Result("n", True),)))
    given = Attach(run=IDS[0], runs_dir=tmp_path) if verb == "attach" else Stacks(run=IDS[0])
    plan = (attach.AttachPlan if verb == "attach" else stacks.StacksPlan)(Inventory((Host("n", "n"),)), given)
    with pytest.raises(FleetError, match="started by another version of fleet") as caught:
        module.run(plan, Runtime(LocalTransport()))
    assert "fleet logs" in str(caught.value.hint) and not (tmp_path / IDS[0]).exists()


def test_the_report_of_a_run_that_others_followed_is_that_of_its_summary(tmp_path: Path) -> None:
    error = ConnectError("silent for 15 s", host="n2", kind="lost", hint="look there")
    results = (Result("n1", True, 0, data={"left": []}), Result("n2", False, error=error, data={"state": "lost"}))
    report = Report("launch", results, 122, {"run": "r", "attempt": 1, "restarts": [{"attempt": 1}]})
    folder = RunFolder.create(tmp_path, "r")
    assert report_of(folder) is None
    folder.write_json("summary.json", report.as_json())
    folder.release()
    found = report_of(folder)
    assert found is not None
    document, before = found.as_json(), report.as_json()
    assert document.items() >= {name: value for name, value in before.items() if name != "hosts"}.items()
    for host in ("n1", "n2"):
        assert document["hosts"][host].items() >= before["hosts"][host].items()
    assert found.exit_code == 122 and found.results[1].error is not None and found.results[1].error.kind == "lost"


def test_a_run_that_begins_nowhere_has_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "fleet.yaml").write_text("hosts: {a: {address: 127.0.0.1}}\n")
    words = ["--transport", "local", "launch", "--no-preflight", "--workdir", str(tmp_path / "nowhere")]
    assert run(["--json", *words, "x.sh"]) == 1
    (known,) = local_runs(Path("runs"))
    assert (known.state, known.exit_code) == ("failed", 1)
    summary = json.loads((Path("runs") / known.run / "summary.json").read_text())
    assert "cannot enter the folder" in summary["error"]["message"] and not summary["hosts"]["a"]["ok"]
    assert not list(headless(Path("runs"))) and run(["--transport", "local", "attach"]) == 1
    assert not os.path.lexists("runs/latest"), "it never began"
    assert json.loads((Path("runs") / known.run / "summary.json").read_text()) == summary


class Full(threading.Thread):
    """Follows a run whose bytes this machine's disk does not take."""

    silent_since = None

    def __init__(self, host: Host, logs: object, how: Following, waiting: object) -> None:
        super().__init__()
        self.host, self.post = host, how.post

    def run(self) -> None:
        self.post(Heard(self.host.name, "blocked", "No space left on device", 0.0))
        self.post(Heard(self.host.name, "over", Over(False, "No space left on device"), 0.0))

    def give_up(self) -> None:
        pass


def test_a_full_disk_here_is_why_logs_are_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringing, "Follower", Full)
    runtime, host = Runtime(LocalTransport()), Host("a", "127.0.0.1")
    folder = RunFolder.create(tmp_path / "runs", "r")
    found, sessions = FoundRun("r", {"a": host}, {}), Sessions(runtime)
    error = bringing.bring(found, folder, runtime, sessions, once=True)["a"]
    folder.release()
    sessions.close()
    assert error.message == f"its logs are not complete here: {folder.path}: No space left on device"
    assert error.hint == "when there is room: fleet logs r"
