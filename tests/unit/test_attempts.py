"""Whether a run goes on after a failure, on which hosts, and where the logs of each attempt are."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.errors import ConnectError, FleetError, Interrupted, PreflightError, UsageError
from fleet.events import Event, Notice
from fleet.model import Host, Inventory, Job, Report, Result
from fleet.ops.run.find import attach
from fleet.ops.run.kept.documents import read_object
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import followed
from fleet.ops.run.launch import attempts, hand_over
from fleet.ops.run.launch.attempts import follow_run
from fleet.ops.run.launch.course import Course
from fleet.ops.run.launch.loop import Run
from fleet.ops.run.plan import origin
from fleet.ops.run.plan.code import Code
from fleet.ops.run.plan.placement import candidate_ports
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.plan.plan import plan as make_plan
from fleet.ops.run.sessions import Sessions
from fleet.ops.run.start import start
from fleet.ops.run.start.spares import with_enough
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport

HOSTS = tuple(Host(name, f"10.0.0.{number}", slots=2) for number, name in enumerate("dabc", 1))


def planned(restarts: int = 0, spares: int = 0, nnodes: int | None = None) -> Plan:
    job = Job("t.py", max_restarts=restarts)
    return make_plan(Inventory(HOSTS), job, Launch("t.py", spares=spares, nnodes=nnodes), "r")


def ended(plan: Plan, what: str | None = "rank", lost: tuple[str, ...] = ()) -> Report:
    error = ConnectError("silent for 15 s", kind="lost")
    results = tuple(
        Result(host.name, False, error=error if host.name in lost else None, data={"state": state})
        for host in plan.hosts
        for state in ["lost" if host.name in lost else "stopped"]
    )
    failure = what and {"what": what, "host": lost[0] if lost else "a", "message": "it failed"}
    return Report("launch", results, 1, {"first_failure": failure})


def names(plan: Plan) -> str:
    return "".join(host.name for host in plan.hosts)


def test_a_failure_restarts_so_often_and_slower_each_time() -> None:
    course: Course | None = Course(planned(restarts=3))
    pauses = []
    while (course := course.after(ended(course.plan), 2.0)) is not None:
        assert course.plan.attempt == course.restarts and names(course.plan) == "dabc"
        pauses.append(course.pause)
    assert pauses == [1.0, 2.0, 4.0]
    late = Course(planned(restarts=30), 8, 8).after(ended(planned()), 3600.0)
    assert late is not None and late.pause == 1.0, "what had run for long is no crash loop"
    assert Course(planned(restarts=99), 20, 20).pause == 30.0


@pytest.mark.parametrize("what", [None, "link"])
def test_what_no_restart_mends(what: str | None) -> None:
    """None: interrupted, or logs that are missing. link: this machine's own, so it would reach nobody."""
    assert Course(planned(restarts=3, spares=1)).after(ended(planned(), what), 2.0) is None


def test_a_spare_takes_a_lost_hosts_place_and_ranks_follow_the_inventory() -> None:
    plan = planned(spares=1)
    assert names(plan) == "dab" and [host.name for host in plan.spares] == ["c"] and plan.world.size == 6
    after = Course(plan).after(ended(plan, "node", ("d",)), 20.0)
    assert after is not None and names(after.plan) == "abc" and not after.plan.spares
    assert after.plan.world.master_addr == "10.0.0.2" and after.plan.attempt == 1 and after.restarts == 0
    assert [node.first_rank for node in after.plan.nodes] == [0, 2, 4] and after.lost["d"].message == "silent for 15 s"
    assert after.after(ended(after.plan, "node", ("a",)), 20.0) is None, "no spare is left, no restart was asked for"


def test_a_frozen_host_is_lost_and_a_killed_supervisors_is_not() -> None:
    plan = planned(spares=1, restarts=1)
    frozen = Course(plan).after(ended(plan, "frozen"), 20.0)
    assert frozen is not None and names(frozen.plan) == "dbc" and frozen.restarts == 0
    killed = Course(plan).after(ended(plan, "supervisor"), 20.0)
    assert killed is not None and names(killed.plan) == "dab" and killed.restarts == 1


@pytest.mark.parametrize(
    ("nnodes", "spares", "taken", "left"), [(2, 1, "da", "b"), (None, 3, "d", "abc"), (2, 0, "da", "")]
)
def test_which_hosts_stand_by(nnodes: int | None, spares: int, taken: str, left: str) -> None:
    plan = planned(nnodes=nnodes, spares=spares)
    assert names(plan) == taken and "".join(host.name for host in plan.spares) == left
    assert plan.describe().get("spares", []) == list(left)


@pytest.mark.parametrize(("nnodes", "spares"), [(None, 4), (4, 1), (3, 2)])
def test_too_few_hosts(nnodes: int | None, spares: int) -> None:
    with pytest.raises(UsageError, match=f"--spares {spares}: only 4 hosts are selected"):
        planned(nnodes=nnodes, spares=spares)


class Unfit:
    """Work that fails on some hosts, with what it says meanwhile."""

    def __init__(self, runtime: Runtime, *hosts: str, error: FleetError | None = None) -> None:
        self.runtime, self.hosts, self.error, self.asked = runtime, hosts, error, list[str]()

    def __call__(self, plan: Plan) -> str:
        self.asked.append(names(plan))
        failed: dict[str, FleetError | None] = {
            host.name: PreflightError("no GPU", host=host.name) if host.name in self.hosts else None
            for host in plan.hosts
        }
        if any(failed.values()):
            self.runtime.emit(Notice("error", "a finding"))
            raise self.error or PreflightError("refused").but(hosts=failed)
        return "fine"


def runtime() -> tuple[Runtime, list[str]]:
    said: list[str] = []

    def emit(event: Event) -> None:
        assert isinstance(event, Notice)
        said.append(f"{event.level}: {event.message}")

    return Runtime(LocalTransport(), emit=emit), said


def test_unfit_hosts_are_left_out_while_enough_remain() -> None:
    here, said = runtime()
    work = Unfit(here, "a")
    plan, answer, out = with_enough(planned(spares=2), here, work)
    assert (names(plan), [host.name for host in plan.spares], answer) == ("db", ["c"], "fine")
    assert work.asked == ["dabc", "dbc"] and list(out) == ["a"]
    assert said == ["warning: a is left out: no GPU"]


def test_an_elastic_run_begins_with_those_that_answer() -> None:
    """The others are of it, too, and behind them: ranks meet on the first."""
    here, said = runtime()
    options = Launch("t.py", nnodes="2:4")

    def work(silent: str) -> Callable[[Plan], str]:
        def ask(plan: Plan) -> str:
            failed = {name: ConnectError("no answer", host=name) for name in silent if name in names(plan)}
            if failed:
                raise ConnectError("no answer").but(hosts=failed)
            return names(plan)

        return ask

    whole = make_plan(Inventory(HOSTS), Job("t.py"), options, "r")
    plan, answer, out = with_enough(whole, here, work("db"))
    assert answer == "ac" and list(out) == ["d", "b"] and plan.world.master_addr == HOSTS[1].address
    assert [node.host.name for node in plan.nodes] == ["a", "c", "d", "b"] and plan.world.least == 2
    assert said == [f"warning: starts with 2 of 4 nodes ({name}: no answer)" for name in "db"]
    with pytest.raises(ConnectError):
        with_enough(whole, here, work("dbc"))
    with pytest.raises(FleetError, match="refused"):  # no wait mends it
        with_enough(whole, here, Unfit(here, "b"))


@pytest.mark.parametrize(
    ("hosts", "error"), [("ab", None), ("a", Interrupted("interrupted")), ("a", FleetError("odd"))]
)
def test_too_many_unfit_hosts_are_the_error_that_they_are(hosts: str, error: FleetError | None) -> None:
    here, said = runtime()
    with pytest.raises(FleetError, match="refused|interrupted|odd"):
        with_enough(planned(spares=1), here, Unfit(here, *hosts, error=error))
    assert said == ["error: a finding"]


def test_a_host_that_was_lost_while_it_started_is_not_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have begun all the same, and without a lease nothing there would end it."""
    sent: list[list[str]] = []
    monkeypatch.setattr(
        start, "send_janitor", lambda record, hosts, *_: sent.append([host.name for host in hosts]) or 7
    )
    lost = {"a": ConnectError("silent for 15 s", host="a")}
    monkeypatch.setattr(Sessions, "each", lambda self, hosts, work, what, cancel=None: ({}, lost))
    here, said = runtime()
    plan = planned()
    with pytest.raises(ConnectError, match="everything was stopped again"):
        start.start_all(plan, replace(plan.record(0.0), lease=None), Sessions(here))
    assert sent == [["a"]] and "warning: a: its ranks run until somebody stops them" in said[0], said


def test_each_attempt_has_ports_of_its_own() -> None:
    assert not set(candidate_ports("r")) & set(candidate_ports("r", 1)) and candidate_ports("r", 0) == candidate_ports(
        "r"
    )
    plan = replace(planned(), attempt=2)
    assert plan.refine({}).attempt == 2 and plan.record(0.0).about()["attempt"] == 2


def test_logs_of_earlier_attempts_are_set_aside(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "r")
    (folder.path / "stacks").mkdir()
    written: list[Any] = []
    for attempt in (0, 1, 3):  # the third one could not begin
        folder.begin(attempt)
        written.append(folder.node("a", attempt))
        written[-1].write("rank0.out", 0, f"{attempt}\n".encode())
    found = {str(path.relative_to(folder.path)): path.read_text() for path in folder.path.glob("**/rank0.out")}
    assert found == {"a/rank0.out": "3\n", "attempt1/a/rank0.out": "1\n", "attempt0/a/rank0.out": "0\n"}
    assert (folder.path / "stacks").is_dir()
    late = folder.node("a", 0)
    assert late.sizes() == {"rank0.out": 2} and folder.is_aside(0) and not folder.is_aside(3)
    folder.release()
    silent = RunFolder.create(tmp_path / "runs", "s")
    silent.begin(1)
    assert not silent.aside(0).exists(), "no host had begun"
    silent.release()


class Over:
    """An attempt that has ended."""

    leads = True

    def __init__(self, report: Report) -> None:
        self.report = report

    def follow(self) -> Report:
        return self.report

    def close(self) -> None:
        pass


def test_who_takes_a_run_up_knows_of_the_restarts_before(tmp_path: Path) -> None:
    """A keeper after 'd', or 'attach'."""
    folder = RunFolder.create(tmp_path / "runs", "r")
    folder.write_json("run.json", {"run": "r", "restarts": [{"attempt": 1}]})
    plan = replace(planned(), attempt=1)
    follow_run(plan.record(0.0), folder, {}, runtime()[0], None, cast(Run, Over(ended(plan))))
    assert read_object(folder.path / "summary.json")["restarts"] == [{"attempt": 1}]
    folder.release()


def test_a_restart_while_git_is_still_asked_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = threading.Event(), planned()

    def look(folder: str) -> tuple[Code, bytes]:
        assert told.wait(60)
        return Code(folder, why="not a checkout"), b""

    monkeypatch.setattr(origin, "look", look)
    folder = RunFolder.create(tmp_path / "runs", "r")
    written = origin.Origin(asked, asked.record(0.0), folder, runtime()[0], asked.inventory)
    folder.amend("run.json", restarts=[{"attempt": 1}])
    told.set()
    written.wait()
    kept = read_object(folder.path / "run.json")
    assert kept["restarts"] == [{"attempt": 1}] and kept["code"]["why"] == "not a checkout"
    folder.release()


def test_a_keeper_restarts_the_run_while_what_git_says_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes, each with the folder of its own: neither undoes what the other writes, or takes its file."""
    head, path = RunFolder.create(tmp_path / "runs", "r"), tmp_path / "runs" / "r" / "run.json"
    other = threading.Thread(target=RunFolder(head.path).amend, args=["run.json"], kwargs={"restarts": [1]})
    read = read_object

    def slowly(path: Path) -> dict[str, object]:
        """The keeper writes amid it, unless it waits for its turn."""
        found = read(path)
        if threading.current_thread() is not other:
            other.start()
            other.join(0.5)
        return found

    monkeypatch.setattr("fleet.ops.run.kept.folder.read_object", slowly)
    head.amend("run.json", code="clean")
    other.join(60)
    assert read(path) == {"code": "clean", "restarts": [1]}
    head.release()


def test_a_host_that_refuses_us_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the pause is over: a busy one may."""

    class Busy(LocalTransport):
        refused = False

        def connect(self, host: Host, cancel: Cancel | None = None) -> Session:
            if host.name == "a" and not self.refused:
                self.refused = True
                raise ConnectError("the connection was closed", host=host.name)
            return super().connect(host, cancel)

    answer = {"event": "ready", "left": [], "port": 29500, "forbidden": False}
    monkeypatch.setattr(attempts, "Program", lambda *_: nullcontext())
    monkeypatch.setattr(attempts, "first_word", lambda *_, **__: answer)
    monkeypatch.setattr(attempts, "RETRY_SECONDS", 0.01)
    asked, busy = planned(), Busy()
    with ExitStack() as waiting, closing(Sessions(Runtime(busy))) as sessions:
        ready = attempts.check(asked, asked.record(0.0), sessions, time.monotonic(), waiting)
    assert busy.refused and ready.world.master_port == 29500


def test_no_restart_is_announced_once_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While ranks of a failed attempt take their time to end."""
    ends: list[Any] = []
    monkeypatch.setattr(attempts, "stop_all", lambda *args, **more: ends.append((args[3]["by"], more)))
    folder, plan, (here, said) = RunFolder.create(tmp_path / "runs", "r"), planned(restarts=3), runtime()
    here.cancel.set()
    report = follow_run(plan.record(0.0), folder, {}, here, Course(plan), cast(Run, Over(ended(plan))))
    assert (report.exit_code, report.data["stopped"]) == (130, "interrupted between two attempts") and said == []
    assert ends == [("interrupt", {"for_good": True})]
    assert '"event": "restart"' not in (folder.path / "events.jsonl").read_text()
    folder.release()


def test_a_keeper_that_dies_before_it_follows_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its stdin closed, as begin() leaves it."""

    def begin(*args: object, **more: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["false"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin
        process.stdin.close()
        return process

    monkeypatch.setattr(hand_over, "begin", begin)
    folder, (here, _) = RunFolder.create(tmp_path / "runs", "r"), runtime()
    with pytest.raises(FleetError, match="nothing on this machine follows the run"):
        hand_over.send_keeper(planned().record(0.0), folder, here.transport)
    assert not folder.held


def test_a_run_that_is_left_is_followed_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who looks on takes it for one that is over, or takes it up before its keeper, which could start it again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, left, alone = RunFolder.create(tmp_path / "runs", "r"), threading.Event(), list[float]()
    summary, record = folder.path / "summary.json", replace(planned().record(0.0), logs=folder.path)

    def look() -> None:
        while not left.wait(0.01):
            if not followed(folder.path) and not summary.exists():
                alone.append(time.monotonic())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        pid = hand_over.send_keeper(record, folder, LocalTransport())
    finally:
        left.set()
        watcher.join()
    os.waitpid(pid, 0)
    assert not alone and not folder.held and not followed(folder.path)
    assert summary.exists(), (folder.path / "keeper.log").read_text()


def test_who_attaches_waits_for_all_nodes_of_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first node begins before the others."""

    def known(nodes: int) -> Any:
        record = SimpleNamespace(attempt=1)
        parts = dict.fromkeys(range(nodes))
        return SimpleNamespace(
            run_id="r", withdrawn=False, record=lambda runs_dir: record, parts=parts, nnodes=2, state="running"
        )

    answers = [[known(1)], [known(2)]]
    monkeypatch.setattr(attach, "find", lambda *args, **more: (answers.pop(0), ()))
    monkeypatch.setattr(attach, "ASK_AGAIN_SECONDS", 0.0)
    plan = SimpleNamespace(inventory=None, request=SimpleNamespace(runs=None))
    record = SimpleNamespace(restartable=True, attempt=0, owner="ada@head", run_id="r")
    found = attach._another(cast(Any, record), cast(Any, plan), runtime()[0])
    assert found is not None and len(found.parts) == 2 and not answers
