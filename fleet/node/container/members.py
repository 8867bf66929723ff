"""Who takes part in a meeting, and what it reports: anybody may dial, so each value is checked."""

from fleet.node.base.types import Any
from fleet.node.container.line import Line


class Member:
    """A container, by its first message. node: its rank, once the run begins. ended: its last message."""

    def __init__(self, line: Line, hello: "dict[str, Any]") -> None:
        rank = hello.get("rank")
        self.line, self.host = line, str(hello["host"])[:64].replace("/", "_").lstrip(".") or "container"
        self.rank: int | None = int(rank) if rank is not None else None
        self.each, self.about = int(hello["each"]), hello["about"]
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
    made: dict[str, Any] = {"host": member.host, "node_rank": member.node, "exit_code": int(found["exit_code"])}
    for name in ("rank", "local_rank", "signal"):
        made[name] = None if found.get(name) is None else int(found[name])
    for name in ("why", "tail"):
        made[name] = None if found.get(name) is None else str(found[name])
    message = str(found.get("message") or "%s failed" % member.host)
    return dict(made, what=str(found.get("what") or "node"), message=message, log=str(found.get("log") or ""))


def ended_of(found: "dict[str, Any]") -> "dict[str, Any]":
    """The same of its last message."""
    return {
        "code": int(found["code"]),
        "state": str(found["state"]),
        "reason": found.get("reason"),
        "ranks": dict(found["ranks"]),
    }


def nodes(about: "dict[str, Any]") -> str:
    return str(about["most"]) if about["least"] == about["most"] else "%d to %d" % (about["least"], about["most"])


def shown(about: "dict[str, Any]") -> str:
    return "%s, of %s nodes" % (str(about.get("job") or "without a name")[:60], nodes(about))
