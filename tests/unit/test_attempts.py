"""Whether a run goes on after a failure, and on which hosts: `fleet launch` on nodes that answer by a script."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.errors import FleetError, Interrupted
from fleet.events import Event, Notice
from tests.in_process import Outcome, command_line, reached_by
from tests.run_folders import an_id, run_folder
from tests.scripted import Answer, Message, Scripted, Spec, about, ends, lists, part, well

ODD = {"activate": "bash: x: not found"}  # of a host where nothing can start
GIT = "#!/bin/sh\nuntil [ -e again ]; do sleep 0.1; done\necho no repository >&2\nexit 128\n"
GONE: list[Any] = []  # what a host sends that was there just now


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("fleet.node.gang.verdict.PAUSE_SECONDS", 0.0)
    (tmp_path / "hostfile").write_text("d\na\nb\nc\n")
    return tmp_path


def nodes(**changed: dict[str, Answer]) -> Scripted:
    """d, a, b and c, which run one attempt well; but for those that are changed. An empty one does not answer."""
    found = {host: changed.get(host, well(ends(rank))) for rank, host in enumerate("dabc")}
    return Scripted({host: answers for host, answers in found.items() if answers})


def launch(transport: Scripted, *options: str) -> Outcome:
    return command_line(["launch", "--engine", "command", *options, "./t"], transport)


def asked(transport: Scripted, program: str) -> str:
    return "".join(sorted(host for host, what, _ in transport.sent if what == program))


def summary() -> dict[str, Any]:
    (run,) = fleet.runs()
    found = json.loads((Path(run.logs) / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def test_unfit_hosts_are_left_out_while_enough_remain() -> None:
    hosts = nodes(a=well(**ODD), b=well(ends(1)))
    done = launch(hosts, "--spares", "2")
    assert done.code == 0 and list(summary()["hosts"]) == ["d", "b"], done
    assert "warning: a is left out: a: the activate line: it failed" in done.err and "error" not in done.err, done.err
    assert (asked(hosts, "probe"), asked(hosts, "supervise")) == ("abbccdd", "bd")


def test_too_many_unfit_hosts_are_the_error_that_they_are() -> None:
    hosts = nodes(a=well(**ODD), b=well(**ODD))
    done = launch(hosts, "--spares", "1")
    assert done.code == 123 and "left out" not in done.err and not asked(hosts, "supervise"), done
    assert "error: a,b: the activate line: it failed" in done.err, done.err


def test_an_interrupt_in_preflight_leaves_no_host_out() -> None:
    said = list[Event]()
    planned = fleet.open("hostfile").plan.launch("./t", engine="command", spares=2)
    with planned.fleet.runtime(said.append) as runtime:

        def probe(spec: Spec) -> list[Message]:
            runtime.cancel.set()
            return []

        hosts = nodes(a={"probe": probe})
        with pytest.raises(Interrupted, match="nothing was started"):
            planned.work(replace(runtime, transport=hosts))
    assert not asked(hosts, "supervise") and not [it for it in said if isinstance(it, Notice)], said


def test_an_elastic_run_begins_with_those_that_answer() -> None:
    """The others are of it, too, and behind them: ranks meet on the first."""
    torch = {"python": {"path": "/py", "version": "3.11.2"}, "torch": {"version": "2.5"}}
    hosts = nodes(d={}, a=well(ends(0), **torch), b={}, c=well(ends(1), **torch))
    words = ["launch", "--nnodes", "2:4", "--nproc-per-node", "1", "t.py"]
    done = command_line(words, hosts)
    assert done.code == 0 and asked(hosts, "supervise") == "ac", done
    for host in "db":
        assert f"starts with 2 of 4 nodes ({host}: no answer)" in " ".join(done.err.split()), done.err
    (specs,) = [spec for host, what, spec in hosts.sent if (host, what) == ("a", "supervise")]
    assert specs["node_rank"] == 0 and specs["about"]["hosts"].keys() == {*"acdb"} and specs["about"]["least"] == 2
    assert command_line(words, nodes(d={}, b={}, c={}, a=well(**torch))).code == 122, "too few"
    refused = command_line(words, nodes(b=well(**torch, **ODD), **{host: well(**torch) for host in "dac"}))
    assert refused.code == 123, "no wait mends it"


def test_a_host_that_was_lost_while_it_started_is_not_left_to_itself() -> None:
    """It may have begun all the same, and without a lease nothing there would end it."""
    hosts = nodes(a={**well(), "supervise": lambda spec: hosts.go("a") or GONE})
    done = launch(hosts, "--detach", "--nnodes", "2")
    assert done.code == 122 and "everything was stopped again" in done.err, done
    assert "warning: a: its ranks run until a user stops them" in done.err, done.err


def test_a_host_that_refuses_us_once_is_asked_again() -> None:
    """Though the pause is over: a busy one may."""
    first, second = well(ends(0, status=7), ends(0, attempt=1)), well(ends(1), ends(1, attempt=1))
    hosts = Scripted({"d": first, "a": second}, refused={"a": 1})
    done = launch(hosts, "--nnodes", "2", "--max-restarts", "1")
    assert done.code == 0 and summary()["attempt"] == 1, done
    assert asked(hosts, "supervise") == "aadd"


def test_a_restart_while_git_is_still_asked_is_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "bin").mkdir()
    (here / "bin/git").write_text(
        "#!/bin/sh\nuntil [ -e again ]; do sleep 0.1; done\necho no repository >&2; exit 128\n"
    )
    (here / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}/bin:{os.environ['PATH']}")
    attempts = [lambda: ends(0, status=7), lambda: (here / "again").touch() or ends(0, attempt=1)]
    hosts = nodes(d={**well(), "follow": lambda spec: attempts.pop(0)()})
    assert launch(hosts, "--nnodes", "1", "--max-restarts", "1").code == 0
    kept = json.loads((Path(fleet.runs()[0].logs) / "run.json").read_text())
    assert [each["attempt"] for each in kept["restarts"]] == [1] and kept["code"]["why"], kept


def test_no_restart_is_announced_once_it_is_interrupted() -> None:
    """While ranks of a failed attempt take their time to end."""
    hosts = nodes(d=well(ends(0, status=7)), a=well(ends(1)))
    said = list[Notice]()
    planned = fleet.open("hostfile").plan.launch("./t", engine="command", nnodes=2, max_restarts=3)
    with reached_by(hosts), ExitStack() as stack:
        runtime = stack.enter_context(planned.fleet.runtime(lambda event: emit(event)))

        def emit(event: Event) -> None:
            if isinstance(event, Notice):
                said.append(event)
                if event.data["event"] == "stop":
                    runtime.cancel.set()

        report = planned.work(runtime)
    assert (report.exit_code, report.data["stopped"]) == (130, "interrupted between two attempts"), report
    ends_ = [(spec["verdict"]["by"], "attempt" in spec) for _, program, spec in hosts.sent if program == "stop"]
    assert ends_ == [("interrupt", False)] * 2 and "restart" not in [each.data["event"] for each in said]
    assert '"event": "restart"' not in (Path(fleet.runs()[0].logs) / "events.jsonl").read_text()


def test_who_takes_a_run_up_knows_of_the_restarts_before(here: Path) -> None:
    """One in the background, or .attach'."""
    run = an_id("r")
    run_folder(here / "runs", run, plan={"run": run, "restarts": [{"attempt": 1}]})
    (here / "hostfile").write_text("d\n")
    report = lists(part(run, about=about(attempt=1, max_restarts=3, restarts=True)))
    done = command_line(["attach", run], Scripted({"d": {**well(ends(0, attempt=1)), "list_runs": report}}))
    assert done.code == 0 and summary()["restarts"] == [{"attempt": 1}], done


def test_a_leader_that_dies_before_it_leads_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "dies").write_text("#!/bin/sh\ncat > /dev/null\n")
    (here / "dies").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(here / "dies"))
    planned = fleet.open("hostfile", transport="local").plan.launch("./t", engine="command", nnodes=1, detach=True)
    hosts = nodes(d=well(ends(0)))
    hosts.name = "local"  # as far as the leader is told
    with reached_by(hosts), pytest.raises(FleetError, match="nothing on this machine follows the run"):
        planned.run()
    assert fleet.runs()[0].state != "followed"


def test_a_run_that_is_left_is_followed_at_every_moment(here: Path) -> None:
    """Else who looks on takes it for one that is over, or takes it up before its leader, which could start it again."""
    (here / "hostfile").write_text("localhost\n")
    (here / "t").write_text("#!/bin/sh\nuntil [ -e over ]; do sleep 0.1; done\n")
    (here / "t").chmod(0o755)
    seen, over = set[str](), threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.update(run.state for run in fleet.runs())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        fleet.open("hostfile", transport="local").launch("./t", engine="command", detach=True).wait()
        (here / "over").touch()
        until = time.monotonic() + 300
        while fleet.runs()[0].state == "followed" and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        over.set()
        watcher.join()
    assert seen <= {"followed", "done"} and fleet.runs()[0].state == "done", seen
