"""Which run a word means, how a run stands, where its logs begin, and whose its folder is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

import fleet
from fleet.cli.main import run
from fleet.errors import ConnectError, UsageError
from fleet.model import Host, Inventory, Report, Result
from fleet.ops.launch import janitor
from fleet.ops.launch.folder import RunFolder
from fleet.ops.runs import attach
from fleet.ops.runs.find import FoundRun, choose, chosen, is_part_of_name
from fleet.ops.runs.left import left_alone
from fleet.ops.runs.local import local_runs, names, prunable, prune
from fleet.ops.runs.logs import LogsPlan, Reader, is_whole, tail_offset
from fleet.ops.runs.watch import report_of, watch
from fleet.rules.units import bytes_of
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport

IDS = [
    "train-20261122-120000-ab12",
    "train-20261121-120000-cd34",
    "train-big-20261120-120000-ef56",
    "odd",
]


@pytest.mark.parametrize(
    "word, meant",
    [
        ("latest", IDS[0]),
        ("train", IDS[0]),
        ("train-big", IDS[2]),
        ("train-b", IDS[2]),
        ("train-20261121", IDS[1]),
        ("o", "odd"),
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
        "ended": [],
        "silent": None,
        "last": "",
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
        ([part("stopped", cause="asked"), part("exited", engine_status=1)], "stopped"),
        ([part("stopped", cause="lease")], "failed"),
    ],
)
def test_how_a_run_stands(parts: list[Any], state: str) -> None:
    hosts = {f"h{n}": Host(f"h{n}", f"h{n}") for n in range(len(parts))}
    run = FoundRun("r", hosts, dict(zip(hosts, parts, strict=True)))
    assert run.state == state
    assert run.as_json()["state"] == state and run.record(Path("runs")).world_size == len(parts)


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
from fleet.ops.launch.folder import RunFolder
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
        assert folder.hold(10.0)
    folder.release()


def test_attach_without_a_run_ends_its_events_with_the_summary(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h").write_text("localhost\n")
    words = ["-i", str(tmp_path / "h"), "--transport", "local", "attach", "nosuch-run", "--json"]
    assert run([*words, "--runs-dir", str(tmp_path)]) == 2
    *_, last = map(json.loads, capfd.readouterr().out.splitlines())
    assert last["event"] == "summary" and last["error"]["message"].startswith("no run nosuch-run")


def test_old_runs_of_this_machine_go_but_for_the_newest(tmp_path: Path) -> None:
    begun = time.time() - 86400 * 9
    for number, code in enumerate([0, 1, 130, None]):
        folder = tmp_path / f"r{number}"
        folder.mkdir()
        (folder / "events.jsonl").write_text("{}\n")
        (folder / "run.json").write_text(json.dumps({"started": begun + number * 86400, "engine": "torchrun"}))
        if code is not None:
            (folder / "summary.json").write_text(json.dumps({"exit_code": code}))
    found = local_runs(tmp_path)
    assert [(run.run, run.state) for run in found] == [
        ("r3", "open"),
        ("r2", "stopped"),
        ("r1", "failed"),
        ("r0", "done"),
    ]
    assert [run.run for run in prunable(found, 1, 0)] == ["r1", "r0"], "one that is not over is not old"
    assert [run.run for run in prunable(found, 0, 8.5)] == ["r0"]
    sized = [replace(run, size=10) for run in found]
    for size, gone in ((40, []), (39, ["r0"]), (20, ["r1", "r0"]), (0, ["r2", "r1", "r0"])):
        assert [run.run for run in prunable(sized, 0, 0, size)] == gone
    assert [run.run for run in prunable(sized, 2, 0, 0)] == ["r0"]
    held = RunFolder.open(tmp_path, "r0")
    assert local_runs(tmp_path)[-1].state == "followed" and len(prunable(local_runs(tmp_path), 0, 0)) == 2
    with pytest.raises(UsageError, match="a process follows it"):
        prune(found[-1])
    held.release()
    prune(found[-1])
    assert len(local_runs(tmp_path)) == 3


def test_a_run_that_silent_hosts_may_know_is_no_typing_error() -> None:
    silent = Result("n2", False, error=ConnectError("no answer", host="n2", hint="is it up?"))
    with pytest.raises(ConnectError, match="no run x.*no answer from n2") as caught:
        chosen("x", [], [Result("n1", True), silent])
    assert caught.value.exit_code == 122 and caught.value.hint == "is it up?"
    with pytest.raises(UsageError):
        chosen("x", [], [Result("n1", True)])


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
    said, complete = janitor.clean(host, "r", 1.0, Unreachable(), time.monotonic() + 0.1, folder)
    assert tried and all(tried) and not complete and said.startswith("given up")


def test_a_summary_may_say_that_logs_are_missing(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    assert not is_whole(summary)
    for text, whole in (('{"incomplete_logs": []}', True), ('{"incomplete_logs": ["n1"]}', False), ("[", False)):
        summary.write_text(text)
        assert is_whole(summary) is whole


def test_a_live_run_is_meant_before_a_newer_one_that_has_ended() -> None:
    def found(run_id: str, state: str, started: float) -> FoundRun:
        about = {"started": started, "nnodes": 1}
        return FoundRun(run_id, {"h": Host("h", "h")}, {"h": {**part(state), "run": run_id, "about": about}})

    runs = [found(IDS[0], "exited", 3.0), found(IDS[1], "running", 1.0), found(IDS[2], "running", 2.0)]
    for word, meant in (("latest", IDS[2]), ("train", IDS[1]), (IDS[0], IDS[0]), ("train-20261122", IDS[0])):
        assert chosen(word, runs, []).run_id == meant


def test_of_the_runs_here_one_that_is_followed_is_meant_first(tmp_path: Path) -> None:
    for number, ended in enumerate([False, True, False]):
        folder = RunFolder.create(tmp_path, f"r{number}")
        folder.event("version")
        folder.write_json("run.json", {"started": float(number)})
        if ended:
            folder.write_json("summary.json", {})
        folder.release()
    held = RunFolder.open(tmp_path, "r0")
    assert names(tmp_path) == ["r2", "r1", "r0"]
    assert names(tmp_path, followed_first=True) == ["r0", "r2", "r1"]
    held.release()


@pytest.mark.parametrize("machine, said", [(gethostname(), "of this machine"), ("login2", "of login2")])
def test_who_follows_a_run_already_is_named_with_the_machine(machine: str, said: str, tmp_path: Path) -> None:
    held = RunFolder.create(tmp_path, "r")
    (held.path / ".lock").write_text(json.dumps({"pid": 4242, "helper": machine == "login2", "machine": machine}))
    with pytest.raises(UsageError, match=f"process 4242 {said} follows r already"):
        attach.take(FoundRun("r", {}, {}), tmp_path)
    held.release()


def test_a_program_prunes_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        folder = RunFolder.create(tmp_path, f"r{number}")
        folder.event("version")
        folder.write_json("run.json", {"started": float(number)})
        folder.write_json("summary.json", {"exit_code": 0})
        folder.release()
    assert [run.run for run in fleet.runs(tmp_path)] == ["r2", "r1", "r0"]
    assert [run.run for run in fleet.runs(tmp_path, prune=True, keep=2)] == ["r0"]
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "--max-size", "1TB", "-y"]) == 0
    assert len(fleet.runs(tmp_path)) == 2 and run(["runs", "--max-size", "big"]) == 2
    chosen = ["--keep", "0", "--days", "0.5", "--max-size", "1", "--runs-dir", str(tmp_path)]
    assert run(["runs", "--prune", *chosen]) == 2  # what is to be typed lets go no more than was asked for
    assert f"hint: fleet runs --prune -y {' '.join(chosen)}; --dry-run" in capfd.readouterr().err
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "--max-size", "1", "-y"]) == 0
    assert "removed: the logs of 2 runs" in capfd.readouterr().err
    assert fleet.runs(tmp_path) == []


@pytest.mark.parametrize(
    "text, size",
    [("50GB", 50e9), ("1.5 GiB", 1.5 * 2**30), ("2t", 2e12), ("7", 7), ("", None), ("GB", None), ("-1", None)],
)
def test_a_size_in_words(text: str, size: float | None) -> None:
    assert bytes_of(text) == size


def test_a_run_that_lost_its_head_here_is_told_of_while_its_lease_lasts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "t-20261122-101500-0001")
    folder.event("running")
    folder.be_latest()
    folder.write_json("run.json", {"lease": 60.0})

    def said(ago: float) -> list[str]:
        os.utime(folder.path / "events.jsonl", (0, time.time() - ago))
        return [notice.message for notice in left_alone(tmp_path / "runs")]

    assert said(20.0) == [], "we follow it"
    folder.release()
    assert said(20.0) == [
        f"run {folder.path.name} has been without its head for 20 s; if it goes on, its nodes end it after 60 s"
    ]
    assert said(0.0) == said(61.0) == []
    folder.sign()
    assert time.time() - (folder.path / "events.jsonl").stat().st_mtime < 60
    folder.event("detached")
    assert said(20.0) == [], "it needs no head"


def test_who_looks_on_is_told_as_loudly_as_who_follows(tmp_path: Path) -> None:
    held, seen = RunFolder.create(tmp_path, "r"), set()
    runtime = Runtime(LocalTransport(), 1, lambda event: seen.add((event.message, event.level)))  # type: ignore[attr-defined]
    plan = LogsPlan(Inventory(()), "r", tmp_path, tail=0)
    looking = threading.Thread(target=watch, args=(plan, RunFolder(held.path), runtime))
    looking.start()
    until = time.monotonic() + 60
    while len(seen) < 3 and time.monotonic() < until:  # what was there before it began to look is not told
        held.notice("error", "gpu1 is full", "full", "gpu1")
        held.notice("warning", "all are silent", "alone")
        held.event("stalled", message="of an older fleet")
        time.sleep(0.05)
    runtime.detach.set()
    looking.join()
    held.release()
    assert seen == {("gpu1 is full", "error"), ("all are silent", "warning"), ("of an older fleet", "info")}, seen


def test_a_whole_runs_logs_are_shown_without_an_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    folder = RunFolder.create(Path("runs"), "t-20261122-101500-0001")
    for host in ("gpu1", "gpu2"):
        folder.node(host).write("rank0.out", 0, b"of %s\n" % host.encode())
    folder.event("running")
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
    folder.event("running")
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
    folder.event("running")
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
    folder.event("running")
    folder.write_json("summary.json", {"incomplete_logs": []})
    folder.release()
    (tmp_path / "h").write_text("gpu1\ngpu2\n")

    def said(*more: str) -> tuple[str, str]:
        assert run(["-i", str(tmp_path / "h"), "logs", "t", "--runs-dir", str(runs), *more]) == 0
        return capfd.readouterr()

    assert said() == ("[gpu1:0] of rank 0\n[gpu2:1] of rank 1\n", "")
    assert said("-w", "gpu2") == said("-x", "gpu1") == said("--host", "gpu2") == ("[gpu2:1] of rank 1\n", "")
    none = "warning: run t-20261122-101500-0001: no log of rank 9 is here, but of ranks 0-1\n"
    assert said("--rank", "9") == ("", none)
    assert said("--rank", "1,9") == ("[gpu2:1] of rank 1\n", none)
    assert said("--rank", "1") == ("of rank 1\n", "")


def test_what_is_shown_begins_where_the_nodes_said_and_another_attempt_as_a_whole(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "t-20261122-101500-0001")
    for host in ("gpu1", "gpu2"):
        folder.node(host).write("rank0.out", 0, b"early late")
    said: list[bytes] = []
    plan = LogsPlan(Inventory(()), "t", tmp_path, follow=True)
    reader = Reader(folder.path, plan, lambda output: said.append(output.data), {"gpu1": {"rank0.out": 6}})
    reader.poll()
    folder.begin(1)
    folder.node("gpu1").write("rank0.out", 0, b"of another")
    reader.poll()
    assert said == [b"late", b"of another"], "and nothing of a host that could not say"


def test_the_report_of_a_run_that_others_followed_is_that_of_its_summary(tmp_path: Path) -> None:
    error = ConnectError("silent for 15 s", host="n2", kind="lost", hint="look there")
    results = (Result("n1", True, 0, data={"left": []}), Result("n2", False, error=error, data={"state": "lost"}))
    report = Report("launch", results, 122, {"run": "r", "attempt": 1, "restarts": [{"attempt": 1}]})
    folder = RunFolder.create(tmp_path, "r")
    assert report_of(folder) is None
    folder.write_json("summary.json", report.as_json())
    folder.release()
    found = report_of(folder)
    assert found is not None and found.as_json() == report.as_json()
    assert found.exit_code == 122 and found.results[1].error is not None and found.results[1].error.kind == "lost"
