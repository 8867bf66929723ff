"""The events of a run (fleet/answers/run_*events.py): docs/json.md has all fields, documents read back are the same."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fleet.answers.event import KINDS
from fleet.answers.run_events import COMMON, Restart, StopAll, of_record
from fleet.events import Notice
from fleet.ops.run.kept.reader import NewEvents
from tests.events import ELSEWHERE, always, documented, happened, made

INNER = {"stacks": ("ranks", "hosts", "at", "odd")}  # of what its fields hold


@pytest.mark.parametrize("name", KINDS)
def test_every_field_is_documented_and_no_other(name: str) -> None:
    own = {field.name for field in fields(KINDS[name])} - {"more", *COMMON}
    known = {*own, *COMMON, *INNER.get(name, ())}
    if name not in ELSEWHERE:
        assert always(name) & own <= documented(name), "its fields stand in backticks, then: python -m tools.reference"
    assert documented(name) <= known, "nothing has these fields any more (a new PROTOCOL)"


def test_every_kind_is_made() -> None:
    assert len(KINDS) > 40
    assert sorted({kind.__name__ for kind in KINDS.values()} - made()) == []


@pytest.mark.parametrize("name", KINDS)
def test_what_was_written_is_read_again(name: str) -> None:
    event = happened(name)
    record = json.loads(json.dumps(event.as_json(12.3456, level="info", host="gpu01", message="a message")))
    assert record["event"] == name and record["time"] == 12.346
    again = of_record(record)
    assert type(again) is KINDS[name]
    told = {field: value for field, value in record.items() if field not in ("host", "message")}
    assert json.loads(json.dumps(again.as_json(12.3456, level="info"))).items() >= told.items()


def test_fields_that_are_not_known_come_through_as_they_were_written() -> None:
    stop = {"event": "stop", "time": 2.0, "reason": "interrupted", "grace": 10.0, "moon": [1]}
    event = of_record(stop)
    assert isinstance(event, StopAll) and event.grace == 10.0
    assert event.as_json(2.0) == stop


@pytest.mark.parametrize("wrong", [{"event": "moon"}, {"event": None}, {"grace": "soon"}, {"reason": 3}, {}])
def test_what_is_no_event_is_passed_over(wrong: dict[str, Any], tmp_path: Path) -> None:
    stop = {"event": "stop", "time": 2.0, "reason": "interrupted", "grace": 10.0}
    odd = {**stop, **wrong} if wrong else {"event": "stop", "time": 2.0}
    (tmp_path / "events.jsonl").write_text(f"{json.dumps(odd)}\n{json.dumps(stop)}\n")
    assert [notice.data for notice in NewEvents(tmp_path / "events.jsonl").read()] == [
        {**stop, "level": "info", "host": None, "message": ""}
    ]


def test_a_notice_of_several() -> None:
    stop, restart = StopAll(reason="interrupted", grace=None), happened("restart")
    notice = Notice("warning", "both", "gpu01", happened=(stop, restart), time=1.0)
    assert [record["event"] for record in notice.records] == ["stop", "restart"]
    assert notice.data["reason"] == "interrupted" and notice.has(Restart)
    assert Notice("info", "nothing of a run").data == {}
