"""What the head's code emits as events of a run, read from the source, beside what docs/json.md tells of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fleet.ops.run.follow.follow import REMARKS
from fleet.ops.run.kept import kinds

FLEET = Path(kinds.__file__).parents[3]
ROOMS = ("ops", "cli", "playbook", "api", "rules", "delivery")
COMMON = {"event", "time", "host", "message", "level"}
# calls that emit one, and which of their arguments is its kind
CALLS = {"event": 0, "notice": 2, "say": 2, "_say": 2, "as_one": 2}
HELPERS = ("event", "heard.what")  # the argument of say() itself; the keys of REMARKS
NOT_DATA = {"host", "hint", "level", "message", "event"}  # of say()


class Emitted(NamedTuple):
    """kind: None where the source does not say it."""

    kind: str | None
    fields: frozenset[str]
    where: str


def documented() -> dict[str, set[str]]:
    """Kind -> its fields, without those that all have."""
    found: dict[str, set[str]] = {}
    for told in (kinds.BOTH, kinds.STREAM, kinds.FILE):
        for kind, text in told.items():
            found.setdefault(kind, set()).update(re.findall(r"`(\w+)`", text))
    return found


def emitted() -> Iterator[Emitted]:
    """By every place in the head's code that emits an event of a run."""
    yield from (Emitted(kind, frozenset(), "REMARKS") for kind in REMARKS)
    for room in ROOMS:
        for path in sorted((FLEET / room).rglob("*.py")) if (FLEET / room).is_dir() else [FLEET / room]:
            if path.parent.name == "get":  # whose messages are a node's
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                where = f"fleet/{path.relative_to(FLEET)}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.Call):
                    yield from _of_call(node, where)
                elif isinstance(node, ast.Dict):
                    yield from _of_dict(node, where)


def _of_call(node: ast.Call, where: str) -> Iterator[Emitted]:
    name = ast.unparse(node.func).rpartition(".")[2]
    if name not in CALLS or len(node.args) <= CALLS[name]:
        return
    kind = node.args[CALLS[name]]
    if ast.unparse(kind) in HELPERS:
        return
    fields = {word.arg for word in node.keywords if word.arg} - (set() if name == "event" else NOT_DATA)
    yield Emitted(str(kind.value) if isinstance(kind, ast.Constant) else None, frozenset(fields), where)


def _of_dict(node: ast.Dict, where: str) -> Iterator[Emitted]:
    said = {
        key.value: value for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)
    }
    kind = said.get("event")
    if isinstance(kind, ast.Constant):
        fields = frozenset(str(key) for key in said if key != "event")
        yield Emitted(str(kind.value), fields, where)


def undocumented(events: Iterable[dict[str, Any]]) -> list[str]:
    """Of events as they were written: what docs/json.md does not tell of. Plan and summary are told of elsewhere."""
    told = documented()
    return [
        f"{event['event']}: {field}"
        for event in events
        for field in event
        if event["event"] not in told
        or event["event"] not in ("plan", "summary")
        and field not in told[event["event"]] | COMMON
    ]
