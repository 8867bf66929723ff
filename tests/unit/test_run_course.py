"""What follows an attempt of a run that failed: another one, on which hosts, and after which pause; only planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.answers.runs import FirstFailure, RunSummary
from fleet.errors import ConnectError
from fleet.model import Host, Report, Result
from fleet.ops.run.launch.begin import Course
from tests.in_process import Outcome, command_line
from tests.plans import Plan, planned

HOSTS = tuple(Host(name, f"10.0.0.{number}", slots=2) for number, name in enumerate("dabc", 1))


def of(restarts: int = 0, spares: int = 0) -> Plan:
    return planned(*HOSTS, max_restarts=restarts, spares=spares)


def ended(plan: Plan, what: str | None = "rank", lost: tuple[str, ...] = ()) -> Report:
    error = ConnectError("silent for 15 s", kind="lost")
    results = tuple(
        Result(host.name, False, error=error if host.name in lost else None, data={"state": state})
        for host in plan.hosts
        for state in ["lost" if host.name in lost else "stopped"]
    )
    failure = FirstFailure(lost[0] if lost else "a", what=what, message="it failed") if what else None
    end: Any = {"first": failure and {"what": failure.what, "host": failure.host, "message": failure.message}}
    return Report("launch", results, 1, answer=RunSummary(first_failure=failure, end=end))


def names(plan: Plan) -> str:
    return "".join(host.name for host in plan.hosts)


def test_a_failure_restarts_so_often_and_slower_each_time() -> None:
    course: Course | None = Course(of(restarts=3))
    pauses = []
    while (course := course.after(ended(course.plan), 2.0)) is not None:
        assert course.plan.attempt == course.restarts and names(course.plan) == "dabc"
        pauses.append(course.attempts.pause)
    assert pauses == [1.0, 2.0, 4.0]
    late = Course(of(restarts=30), 8, 8).after(ended(of()), 3600.0)
    assert late is not None and late.attempts.pause == 1.0, "what had run for long is no crash loop"
    assert Course(of(restarts=99), 20, 20).attempts.pause == 30.0


@pytest.mark.parametrize("what", [None, "link"])
def test_what_no_restart_mends(what: str | None) -> None:
    """None: interrupted, or logs that are missing. link: this machine's own, so it would reach nobody."""
    assert Course(of(restarts=3, spares=1)).after(ended(of(), what), 2.0) is None


def test_a_spare_takes_a_lost_hosts_place_and_ranks_follow_the_inventory() -> None:
    plan = of(spares=1)
    assert names(plan) == "dab" and [host.name for host in plan.spares] == ["c"] and plan.world.size == 6
    after = Course(plan).after(ended(plan, "node", ("d",)), 20.0)
    assert after is not None and names(after.plan) == "abc" and not after.plan.spares
    assert after.plan.world.master_addr == "10.0.0.2" and after.plan.attempt == 1 and after.restarts == 0
    assert [node.first_rank for node in after.plan.nodes] == [0, 2, 4] and after.lost["d"].message == "silent for 15 s"
    assert after.after(ended(after.plan, "node", ("a",)), 20.0) is None, "no spare is left, no restart was asked for"


def test_a_frozen_host_is_lost_and_a_killed_supervisors_is_not() -> None:
    plan = of(spares=1, restarts=1)
    frozen = Course(plan).after(ended(plan, "frozen"), 20.0)
    assert frozen is not None and names(frozen.plan) == "dbc" and frozen.restarts == 0
    killed = Course(plan).after(ended(plan, "supervisor"), 20.0)
    assert killed is not None and names(killed.plan) == "dab" and killed.restarts == 1


def test_each_attempt_has_ports_of_its_own() -> None:
    course: Course | None = Course(of(restarts=2))
    ports = list[set[int]]()
    while course is not None:
        ports.append(set(course.plan.ports))
        assert course.plan.refine({}).attempt == course.plan.record(0.0).about["attempt"] == len(ports) - 1
        course = course.after(ended(course.plan), 2.0)
    assert len(ports) == 3 and not ports[0] & ports[1] and not ports[1] & ports[2]


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("d\na\nb\nc\n")


@pytest.mark.parametrize(("options", "taken", "left"), [("2 1", "da", "b"), (" 3", "d", "abc"), ("2 0", "da", "")])
def test_which_hosts_stand_by(options: str, taken: str, left: str, inventory: None) -> None:
    done = dry_run(*options.split(" "))
    plan = done.document()["plan"]
    assert "".join(plan["hosts"]) == taken and plan.get("spares", []) == list(left)


@pytest.mark.parametrize("options", [" 4", "4 1", "3 2"])
def test_too_few_hosts(options: str, inventory: None) -> None:
    nnodes, spares = options.split(" ")
    done = dry_run(nnodes, spares)
    assert done.code == 2 and f"--spares {spares}: only 4 hosts are selected" in done.out, done


def dry_run(nnodes: str, spares: str) -> Outcome:
    words = ["--nnodes", nnodes] * bool(nnodes)
    return command_line(["--dry-run", "--json", "launch", *words, "--spares", spares, "t.py"], None)
