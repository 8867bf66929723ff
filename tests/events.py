"""The events of a run: what documents have of them, beside what docs/json.md says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import fleet
from fleet.answers.event import KINDS, RunEvent
from fleet.answers.run_events import COMMON, OTHERS
from fleet.codec import KEY

FLEET = Path(fleet.__file__).parent
ELSEWHERE = ("plan", "summary")  # their fields are those of `--dry-run` and of the report


VALUES: dict[str, Any] = {
    "int": 7,
    "float": 1.5,
    "str": "x",
    "bool": True,
    "Sequence[int]": [1],
    "Sequence[str]": ["a"],
}


def happened(kind: str, **given: Any) -> RunEvent:
    """An event with a value in each field that it must have; of a kind that is not known, a plain one."""
    if kind not in KINDS:
        return RunEvent(more={"event": kind, **given})
    needed = [each for each in fields(KINDS[kind]) if each.default is MISSING and each.default_factory is MISSING]
    values = {each.name: None if "None" in str(each.type) else VALUES.get(str(each.type), {}) for each in needed}
    return KINDS[kind](**{**values, **given})


def documented(kind: str) -> set[str]:
    """Fields, without those that all have."""
    texts = [KINDS[kind].__doc__ or ""] if kind in KINDS else []
    return {name for text in (*texts, OTHERS.get(kind, "")) for name in re.findall(r"`(\w+)`", text)}


def always(kind: str) -> set[str]:
    """Fields that every document of the kind has."""
    return {field.name for field in fields(KINDS[kind]) if KEY not in field.metadata}


def made() -> set[str]:
    """The classes of events that the head's code makes, or hands on as a class."""
    files = [path for path in FLEET.rglob("*.py") if path.parent.name != "answers"]
    trees = (ast.parse(path.read_text("utf-8")) for path in files)
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def undocumented(events: Iterable[dict[str, Any]]) -> list[str]:
    """Of events as they were written: what docs/json.md does not have."""
    return [
        f"{event['event']}: {field}"
        for event in events
        for field in event
        if event["event"] not in KINDS | OTHERS
        or (event["event"] not in ELSEWHERE and field not in documented(event["event"]) | {*COMMON})
    ]
