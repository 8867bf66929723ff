"""How a run ended is decided once, by who leads it, and kept by its nodes: every other head says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory, Job
from fleet.node.base.run_folder import NODE
from fleet.node.gang.ends import run_end
from fleet.node.run.list_runs import runs
from fleet.ops.run.end.summary import decide, summarise
from fleet.ops.run.find.find import read
from fleet.ops.run.follow.follow import FollowEvent
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.launch.loop import Run
from fleet.ops.run.plan.plan import plan
from fleet.protocol.state import PROTOCOL
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.in_process import Outcome, command_line
from tests.run_folders import an_id, run_folder
from tests.scripted import Answer, Message, Scripted, Spec, about, ends, lists, part, well

RUN = an_id("r")


class Node:
    """One that keeps the first verdict that it is told. part: what it has of the run; changed: other answers."""

    def __init__(self, *follows: list[Message], **changed: Answer) -> None:
        self.verdict: Spec | None = None
        self.part: Spec = {}
        self.answers = {**well(*follows), "stop": self.stop, "list_runs": self.lists, **changed}

    def stop(self, spec: Spec) -> list[Message]:
        self.verdict = self.verdict or spec.get("verdict")
        return [{"event": "stopped", "left": [], "was": "gone", "verdict": self.verdict}]

    def lists(self, spec: Spec) -> list[Message]:
        return lists({**self.part, "verdict": self.verdict}) if self.part else lists()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("fleet.node.gang.verdict.PAUSE_SECONDS", 0.0)
    return tmp_path


def from_elsewhere(place: Path, nodes: dict[str, Node], run: str) -> tuple[Outcome, dict[str, Any]]:
    """`fleet attach` in a folder of another head, and the summary there."""
    place.mkdir(exist_ok=True)
    (place / "hostfile").write_text("".join(f"{name}\n" for name in nodes))
    words = ["-i", str(place / "hostfile"), "attach", run, "--runs-dir", str(place / "runs")]
    done = command_line(words, Scripted({name: node.answers for name, node in nodes.items()}))
    return done, json.loads((place / "runs" / run / "summary.json").read_text())


def told(summary: dict[str, Any]) -> tuple[Any, ...]:
    end, failure = summary["end"], summary["first_failure"]
    assert end["code"] == summary["exit_code"]
    return end["by"], end["code"], end["message"], end["attempt"], failure["rank"], failure["exit_code"]


def test_a_restart_that_one_node_refuses_ends_alike_at_every_head(here: Path) -> None:
    """The attempt before it is the run's; what was stopped again elsewhere failed nobody."""
    begun = [{"event": "started", "pid": 1, "dir": "/r"}]
    full = [{"event": "failed", "message": "no room for the run's folder", "hint": None}]
    starts = [[*begun], [*full]]
    nodes = {"d": Node(ends(0)), "a": Node(ends(1, status=3), supervise=lambda spec: starts.pop(0))}
    (here / "hostfile").write_text("d\na\n")
    launched = command_line(
        ["launch", "--engine", "command", "--max-restarts", "1", "./t"],
        Scripted({name: node.answers for name, node in nodes.items()}),
    )
    (folder,) = (here / "runs").glob("*-*")
    first = told(json.loads((folder / "summary.json").read_text()))
    assert launched.code == 3 and first[0] == "failure" and first[3:] == (0, 1, 3), first
    owned = {"max_restarts": 1, "nnodes": 2, "hosts": {"d": (0, 1), "a": (1, 1)}}
    stopped = {"cause": "asked", "reason": "another node did not start"}
    nodes["d"].part = part(folder.name, "stopped", about=about(attempt=1, **owned), **stopped)
    nodes["a"].part = part(folder.name, "exited", node_rank=1, about=about(**owned), engine_status=3)
    for name, node, rank, status in (("d", nodes["d"], 0, 0), ("a", nodes["a"], 1, 3)):
        node.part["host"] = name
        node.answers["follow"] = ends(rank, status=status)
    for head in ("b", "c"):
        looked, summary = from_elsewhere(here / head, nodes, folder.name)
        assert (looked.code, told(summary)) == (3, first), looked


def test_the_code_of_the_verdict_is_that_of_the_first_failure(here: Path) -> None:
    """Though all were stopped for another one, which was heard of before it."""
    hosts = Inventory(tuple(Host(name, name, slots=1) for name in "ab"))
    record = plan(hosts, Job("t.py"), Launch("t.py"), RUN).record(0.0)
    run = Run(record, RunFolder.create(here / "runs", RUN), {}, Runtime(LocalTransport()))
    for host in "ab":
        run._on_message(FollowEvent(host, "message", {"event": "clock", "up": None, "sent": 90.0}, 90.01))
    for host, rank, status, when in (("b", 1, 22, 100.05), ("a", 0, 11, 100.0)):
        end = {"event": "rank", "rank": rank, "status": status, "time": when, "sent": when}
        run._on_message(FollowEvent(host, "message", end, 100.06))
    assert run.gang.end and run.gang.end["code"] == 22
    verdict = decide(record, run.gang, run.logs)
    report = summarise(record, run.gang, run.logs, [], 1.0, verdict)
    assert verdict and report.exit_code == verdict["code"] == 11 and verdict["first"] and verdict["first"]["rank"] == 0
    run.folder.release()


def test_a_run_that_nobody_leads_is_judged_by_who_comes_first(here: Path) -> None:
    """Its lease ended it, and not the rank that this ended. Who comes later reads what the first one has written."""
    nodes = {"a": Node(), "b": Node()}
    for rank, (name, node) in enumerate(nodes.items()):
        because = {"cause": "lease", "reason": "the head sent nothing for 4 s", "began": 10.0, "time": 10.5}
        owned = about(nnodes=2, hosts={"a": (0, 1), "b": (1, 1)})
        node.part = {**part(RUN, "stopped", node_rank=rank, about=owned, **because), "host": name}
        killed = ends(rank)
        killed[2] = {**killed[2], "status": None, "signal": 15, "time": 10.1}  # type: ignore[dict-item]
        killed[3] = {"event": "status", "state": "stopped", "engine_status": None, **because}
        node.answers["follow"] = killed
    looked, summary = from_elsewhere(here / "b", nodes, RUN)
    end = summary["end"]
    assert looked.code == 124 and (end["by"], end["code"], end["host"]) == ("lease", 124, "a"), end
    assert "the head sent nothing for 4 s" in summary["first_failure"]["message"], summary
    assert nodes["a"].verdict == nodes["b"].verdict == end
    nodes["a"].answers["follow"] = nodes["b"].answers["follow"] = [{"event": "end", "sizes": {}}]
    again, later = from_elsewhere(here / "c", nodes, RUN)
    assert (again.code, later["end"]) == (124, end)


def test_where_two_heads_decide_the_first_node_has_the_say(here: Path) -> None:
    """Which another one had told before."""
    nodes = {"a": Node(), "b": Node()}
    for rank, (name, node) in enumerate(nodes.items()):
        owned = about(nnodes=2, hosts={"a": (0, 1), "b": (1, 1)})
        node.part = {**part(RUN, "exited", node_rank=rank, about=owned, engine_status=0), "host": name}
        node.answers["follow"] = ends(rank)
    other = {"by": "stop", "host": None, "code": 130, "who": "ada@c", "message": "stopped by ada@c", "attempt": 0}

    def told_meanwhile(spec: Spec) -> list[Message]:
        nodes["a"].verdict = nodes["a"].verdict or {**other, "first": None, "unknown": [], "time": 1.0}
        return nodes["a"].stop(spec)

    nodes["a"].answers["stop"] = told_meanwhile
    looked, summary = from_elsewhere(here / "b", nodes, RUN)
    assert looked.code == summary["exit_code"] == 130 and summary["end"] == nodes["a"].verdict == nodes["b"].verdict


@pytest.mark.parametrize("odd", [{"more": 1}, {"what": "haunted"}])
def test_a_failure_as_no_head_has_it_is_none(odd: Spec, here: Path) -> None:
    """A node, or another version of fleet there, told of it."""
    first = {"host": "a", "node_rank": 0, "exit_code": 3, "time": 1.0, "rank": 0, "local_rank": 0, "signal": None}
    verdict = {
        **run_end("failure", "rank 0 failed", 3),
        "first": {**first, "what": "rank", "why": None, "tail": "", **odd},
    }
    node = Node(ends(0, status=3), list_runs=lists(part(RUN, "exited", about=about(), verdict=verdict)))
    node.answers["follow"] = ends(0, status=3)
    (here / "hostfile").write_text("a\n")
    looked = command_line(["attach", RUN], Scripted({"a": node.answers}))
    assert looked.code == (3 if "more" in odd else 2) and "Traceback" not in looked.err, looked


def test_a_verdict_that_only_a_replaced_node_can_tell_is_the_runs(here: Path) -> None:
    """Those of the attempt that it is on do not answer."""
    verdict = {**run_end("failure", "rank 0 failed", 3), "attempt": 1}
    node = {"list_runs": lists(part(RUN, "stopped", about=about(max_restarts=1), verdict=verdict)), "follow": ends(0)}
    (here / "hostfile").write_text("a\n")
    (found,) = command_line(["--json", "ps", "--all"], Scripted({"a": node})).document()["runs"]
    assert found["state"] == "failed"
    looked = command_line(["attach", RUN], Scripted({"a": node}))
    assert looked.code == 3, looked


def test_the_verdict_on_a_run_of_another_version_hides_it_from_no_head(here: Path) -> None:
    folder = here / ".fleet/runs" / RUN
    folder.mkdir(parents=True)
    kept = {
        "spec.json": {"run": RUN, "node": NODE, "protocol": PROTOCOL + 1, "host": "a", "node_rank": 0, "ranks": [0]},
        "status.json": {"state": "exited"},
        "verdict.json": {"by": "what only that one knows"},
    }
    for name, document in kept.items():
        (folder / name).write_text(json.dumps(document))
    known, odd = read(runs("", False))
    assert [part["status"] for part in known] == [{"state": "exited"}] and not odd


def test_who_only_brings_what_is_missing_of_a_run_leaves_nothing_to_lead(here: Path) -> None:
    """Killed meanwhile, it was said for ever that nobody led that run, which is over."""
    verdict, led = run_end("done", "done", 0), list[Any]()
    folder = run_folder(here / "runs", RUN, plan={"started": 1.0})

    def follow(spec: Spec) -> list[Message]:
        led.append(json.loads((folder / "state.json").read_text())["leads"])
        return ends(0)

    for known in (None, verdict):
        node = Node(list_runs=lists(part(RUN, "exited", about=about(), verdict=known)), follow=follow)
        (here / "hostfile").write_text("a\n")
        assert command_line(["attach", RUN], Scripted({"a": node.answers})).code == 0
        (folder / "summary.json").unlink()
    assert led == [True, False]
