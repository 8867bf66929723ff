"""What stays behind where hosts could not be reached: it brings their logs, and corrects what is known of the run."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Node
from fleet.node.base.run_folder import NODE, verdict_of
from fleet.node.gang.ends import run_end, stopped_by
from fleet.node.run.stop import stopped
from fleet.ops.run.follow import background
from fleet.ops.run.kept.documents import RunState
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord, about_of
from fleet.protocol.messages.run import Verdict
from fleet.protocol.messages.run_specs import StopSpec
from fleet.runtime import Runtime
from tests.moments import just_before
from tests.run_folders import Leader, an_id, run_folder
from tests.scripted import STOPPED, Message, Scripted, Spec

RUN, HOST = an_id("r"), Host("n1", "n1")
LATE: list[Message] = [
    {"event": "stream", "id": 1, "name": "rank0.out", "offset": 0},
    (1, b"late\n"),
    {"event": "status", "state": "exited", "engine_status": 0, "signal": None, "time": 10.0},
    {"event": "end", "sizes": {"rank0.out": 5}},
]


def summary(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def test_it_brings_logs_once_a_slow_head_has_let_go(tmp_path: Path) -> None:
    """One that is through only when it has waited for its other hosts."""
    path, nodes = run_folder(tmp_path, RUN), Scripted({"n1": {"stop": [STOPPED], "follow": LATE}})
    head, waits, came = Leader(path), threading.Event(), list[tuple[str, bool]]()
    until = time.monotonic() + 600
    helper = threading.Thread(
        target=lambda: came.append(background.clean(HOST, RUN, 1.0, nodes, until, RunFolder(path)))
    )
    with just_before("open", path / ".lock", waits.set):
        helper.start()
        assert waits.wait(300)
    assert [program for _, program, _ in nodes.sent] == ["stop"] and not (path / "n1").exists()
    head.release()
    helper.join(300)
    assert came == [("stopped; processes left: none; its logs are complete here", True)]
    assert (path / "n1/rank0.out").read_text() == "late\n" and RunFolder(path).hold()


def test_one_whose_host_goes_again_lets_the_logs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a week nobody could attach, and no other host's logs were brought."""
    monkeypatch.setattr(background, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(background, "LOOK_SECONDS", 0.05)

    def stop(spec: Spec) -> list[Message]:
        nodes.go("n1")
        return [STOPPED]

    nodes = Scripted({"n1": {"stop": stop}})
    folder = RunFolder(run_folder(tmp_path, RUN))
    said, complete = background.clean(HOST, RUN, 1.0, nodes, time.monotonic() + 86400.0, folder)
    assert said.startswith("stopped") and not complete and folder.hold()
    folder.release()


@pytest.mark.parametrize(
    "end, attempt", [(stopped_by("ada@h"), None), (run_end("failure", "rank 0 failed", 1), 1), (None, 1)]
)
def test_a_stop_that_a_user_wanted_ends_later_attempts_too(
    end: Verdict | None, attempt: int | None, tmp_path: Path
) -> None:
    """Where no node answered, nobody here knew how many there were."""
    nodes = Scripted({"n1": {"stop": [STOPPED], "follow": LATE}})
    background.clean(HOST, RUN, 1.0, nodes, time.monotonic() + 86400.0, RunFolder(run_folder(tmp_path, RUN)), 1, end)
    (spec,) = [spec for _, program, spec in nodes.sent if program == "stop"]
    assert spec.get("attempt") == attempt


def test_no_verdict_on_one_attempt_is_kept_with_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who came to it had not heard that another one had begun."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".fleet/runs" / RUN
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"run": RUN, "node": NODE, "about": {"attempt": 1}}))
    end = run_end("failure", "rank 0 failed", 1)
    spec: StopSpec = {"run": RUN, "grace": 0.0, "reason": "over", "end": end, "attempt": 0, "verdict": end}
    for state, kept in (("running", None), ("exited", end)):
        (folder / "status.json").write_text(json.dumps({"state": state}))
        assert stopped(spec).get("verdict") == verdict_of(str(folder)) == kept


# -- the run's summary -----------------------------------------------------------------------------------------------
def test_logs_that_come_late_complete_those_of_their_own_attempt_only(tmp_path: Path) -> None:
    path = run_folder(tmp_path, RUN, summary={"incomplete_logs": ["n1"]})
    (path / ".attempt").write_text("1")
    background.correct_summary(RunFolder(path), ["n1"], 0)
    assert summary(path)["incomplete_logs"] == ["n1"], "of n1's first attempt"
    background.correct_summary(RunFolder(path), ["n1"], 1)
    assert summary(path)["incomplete_logs"] == []


def test_the_summary_of_a_slow_head_is_corrected_once_it_is_there(tmp_path: Path) -> None:
    path = run_folder(tmp_path, RUN)
    head, waits = Leader(path), threading.Event()
    helper = threading.Thread(target=background.correct_summary, args=[RunFolder(path), ["n1"], 0])
    with just_before("open", path / ".lock", waits.set):
        helper.start()
        assert waits.wait(300)
    (path / "summary.json").write_text('{"incomplete_logs": ["n1", "n2"]}')
    head.release()
    helper.join(300)
    assert summary(path) == {"incomplete_logs": ["n2"]}


def test_a_leader_in_the_background_stops_hosts_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process a run: it starts no other."""
    path, nodes = run_folder(tmp_path, RUN), Scripted({"n1": {"stop": [STOPPED], "follow": LATE}})
    monkeypatch.setattr(background, "own_process", lambda *_, **__: pytest.fail("another process"))
    monkeypatch.setattr(background, "open_transport", lambda *_: nodes)
    monkeypatch.setattr(nodes, "name", "local")
    record = RunRecord(RUN, (Node(HOST, 0, 1, 0),), path, about_of({}))
    text = background.stop_in_background(record, [HOST], Runtime(nodes, background=True), stopped_by("ada@head"))
    assert f"(pid {os.getpid()})" in text
    background.wait()
    assert (path / "n1/rank0.out").read_text() == "late\n" and not RunState(path).stopping


def test_a_thread_limit_leaves_no_host_unstopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """n1 answers once all others had their turn: it is waited for, whichever of them gets no thread."""
    path, tried, begin = run_folder(tmp_path, RUN), threading.Event(), threading.Thread.start
    without = list[str]()

    def limited(thread: threading.Thread) -> None:
        if "n2" in thread.name and not without:
            without.append(thread.name)
            raise RuntimeError("can't start new thread")
        begin(thread)

    def last(spec: Spec) -> list[Message]:
        assert tried.wait(300)
        return [STOPPED]

    def other(spec: Spec) -> list[Message]:
        tried.set()
        return [STOPPED]

    nodes = Scripted({"n1": {"stop": last, "follow": LATE}, "n2": {"stop": other, "follow": LATE}})
    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(background, "open_transport", lambda *_: nodes)
    monkeypatch.setattr(nodes, "name", "local")
    hosts = [HOST, Host("n2", "n2")]
    record = RunRecord(RUN, tuple(Node(host, at, 1, at) for at, host in enumerate(hosts)), path, about_of({}))
    background.stop_in_background(record, hosts, Runtime(nodes, background=True), stopped_by("ada@head"))
    background.wait()
    assert without and all((path / f"{host.name}/rank0.out").read_text() == "late\n" for host in hosts)
    assert not RunState(path).stopping
