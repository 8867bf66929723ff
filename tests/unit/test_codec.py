"""fleet/codec.py: what a process leaves to another one of fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet import codec
from fleet.errors import ConnectError, FleetError, LimitError, PreflightError, ProtocolError
from fleet.model import Host, Report, Result
from fleet.ops.run.launch.begin import Course, Ended
from tests.golden.test_launch_plans import CASES, made
from tests.plans import planned


def there_and_back(course: Course) -> Course:
    read = codec.from_json(Course | None, json.loads(json.dumps(codec.to_json(course))))
    assert read is not None
    return read


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_any_plan_is_the_same_in_another_process(path: Path) -> None:
    plan = made(json.loads(path.read_text()))
    if isinstance(plan, FleetError):
        return
    read = there_and_back(Course(plan, 2, 1))
    assert (read.restarts, read.quick) == (2, 1)
    assert read.plan == plan and read.plan.describe() == plan.describe()
    assert [node.start.command_file() for node in read.plan.nodes] == [n.start.command_file() for n in plan.nodes]


@pytest.mark.parametrize(
    "error",
    [
        ConnectError("silent for 5 s", host="a", kind="lost", hint="look"),
        ProtocolError("it says x", "a"),
        PreflightError("no torch", where="f:1"),
        LimitError("too many"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_what_users_see_of_them(error: FleetError) -> None:
    read = there_and_back(Course(planned(Host("a", "a")), lost={"a": error})).lost["a"]
    assert type(read) is type(error) and read.as_json() == error.as_json() and str(read) == str(error)
    assert read.exit_code == error.exit_code


def test_an_attempt_that_ended_is_the_same() -> None:
    error = ConnectError("gone", host="a", kind="lost")
    report = Report(
        "launch", (Result("a", False, 3, b"\xff\n", error=error, data={"state": "lost"}),), 122, {"next": []}
    )
    ended = Ended(report, {"attempt": 1})
    read = codec.from_json(Ended | None, json.loads(json.dumps(codec.to_json(ended))))
    assert read is not None and read.restart == ended.restart
    assert read.report.as_json() == ended.report.as_json() and read.report.results[0].stdout == b"\xff\n"


def test_fields_that_are_not_known_or_not_there() -> None:
    stored = codec.to_json(Host("a", "10.0.0.1", slots=4))
    del stored["slots"]
    assert codec.from_json(Host, {**stored, "rack": "r7"}) == Host("a", "10.0.0.1")


@pytest.mark.parametrize(
    "broken", [{"name": "a"}, {"name": 1, "address": "x"}, [], None, "a", {"name": "a", "address": []}]
)
def test_what_is_no_host_is_refused(broken: object) -> None:
    with pytest.raises(ValueError, match=" is "):
        codec.from_json(Host, broken)


def test_what_belongs_to_this_process_does_not_leave_it() -> None:
    with pytest.raises(TypeError, match="does not leave"):
        codec.to_json({"lock": object()})


@pytest.mark.parametrize("name", ["Reason", "EXIT_OK", "os", "no such", 7])
def test_an_error_whose_class_is_none_is_one_all_the_same(name: object) -> None:
    assert type(codec.from_json(FleetError, {"class": name, "message": "why"})) is FleetError


def test_a_misfit_in_a_row_says_where() -> None:
    with pytest.raises(codec.Misfit, match=r"\[1\]\[1\]"):
        codec.decode(list[tuple[str, int]], [["a", 1], ["b", "c"]])
