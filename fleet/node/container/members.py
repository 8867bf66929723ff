"""Who takes part in a meeting, and what it reports: anybody may dial, so each value is checked."""

import re

from fleet.node.base.types import Any
from fleet.node.container.line import MOST, Line, bounded

MOST_RANKS, MOST_TEXT, MOST_NAME = 4097, 1 << 14, 256  # of a container; letters


class Member:
    """A container, by its first message. node: its rank, once the run begins. ended: its last message."""

    def __init__(self, line: Line, hello: "dict[str, Any]") -> None:
        rank = hello.get("rank")
        self.line, self.host = (
            line,
            re.sub(r"[^A-Za-z0-9._-]", "_", str(hello["host"])[:64]).lstrip(".-") or "container",
        )
        self.rank: int | None = bounded(rank, MOST) if rank is not None else None
        self.each, self.about = bounded(hello["each"], MOST_RANKS), hello["about"]
        self.node: int | None = None
        self.first = 0
        self.ended: dict[str, Any] | None = None
        self.away = False  # without having ended

    @property
    def over(self) -> bool:
        return self.away or self.ended is not None


def node_of(member: Member) -> "dict[str, Any]":
    """As run.json has it."""
    return {"node_rank": member.node, "ranks": list(range(member.first, member.first + member.each))}


def failure_of(found: "dict[str, Any]", member: Member) -> "dict[str, Any]":
    """What a member reports, as a FirstFailure: anybody may dial. KeyError, TypeError, ValueError for what is none."""
    code = bounded(found["exit_code"], 256)
    made: dict[str, Any] = {"host": member.host, "node_rank": member.node, "exit_code": code}
    for name in ("rank", "local_rank", "signal"):
        made[name] = None if found.get(name) is None else bounded(found[name], MOST)
    for name in ("why", "tail"):
        made[name] = None if found.get(name) is None else str(found[name])[:MOST_TEXT]
    message = str(found.get("message") or "%s failed" % member.host)[:MOST_TEXT]
    what, log = str(found.get("what") or "node")[:MOST_NAME], str(found.get("log") or "")[:MOST_NAME]
    return dict(made, what=what, message=message, log=log)


def ended_of(found: "dict[str, Any]") -> "dict[str, Any]":
    """The same of its last message."""
    reason, ranks = found.get("reason"), dict(found["ranks"])
    if len(ranks) > MOST_RANKS:
        raise ValueError("out of bounds")
    return {
        "code": bounded(found["code"], 256),
        "state": str(found["state"])[:MOST_NAME],
        "reason": None if reason is None else str(reason)[:MOST_TEXT],
        "ranks": {str(rank)[:MOST_NAME]: rank_end(ranks[rank]) for rank in ranks},
    }


def rank_end(found: "dict[str, Any]") -> "dict[str, int | None]":
    """How a rank ended, as ranks_of() of record.py has it."""
    names = ("status", "signal", "attempt")
    return {name: None if found.get(name) is None else bounded(found[name], MOST) for name in names}


def nodes(about: "dict[str, Any]") -> str:
    return str(about["most"]) if about["least"] == about["most"] else "%d to %d" % (about["least"], about["most"])


def shown(about: "dict[str, Any]") -> str:
    return "%s, of %s nodes" % (str(about.get("job") or "without a name")[:60], nodes(about))
