"""Checks what a container reports of its part; most of its events are those of a node's program, follow.py.

Any process may connect and send anything, so each value is checked and made again. What does not fit raises KeyError,
TypeError or ValueError."""

from fleet.node.base.types import Any, Callable, Mapping
from fleet.node.container.channel import bounded

WHOLE, BYTES = 1 << 31, 1 << 53
TEXT, TAIL = 4096, 4096
STATES = ("running", "stopping", "exited", "stopped", "lost")
MOST_PIDS, MOST_LINES = 100, 20


def whole(value: Any) -> int:
    return bounded(value, WHOLE)


def size(value: Any) -> int:
    return bounded(value, BYTES)


def time(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= 1e12:  # nan is not
        raise ValueError("no time")
    return float(value)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value[:TEXT]


def flag(value: Any) -> bool:
    return value is True


def state(value: Any) -> str:
    if value not in STATES:
        raise ValueError("no state")
    return str(value)


def pids(value: Any) -> "list[int]":
    return [whole(pid) for pid in list(value)[:MOST_PIDS]]


def texts(value: Any) -> "list[str]":
    return [text(each) for each in list(value)[:MOST_PIDS]]


def pair(value: Any) -> "tuple[int, int]":
    out, err = value
    return size(out), size(err)


def kernel(value: Any) -> "list[dict[str, Any]]":
    return [made(line, {"text": text, "time": time, "rank": whole}) for line in list(value)[-MOST_LINES:]]


BEHIND = {"rank": whole, "count": whole, "commands": texts}
FIELDS: "dict[str, dict[str, Callable[[Any], Any]]]" = {
    "rank": {
        **dict.fromkeys(("rank", "local_rank", "status", "signal", "attempt"), whole),
        **dict.fromkeys(("time", "sent"), time),
        **dict.fromkeys(("asked", "signalled"), flag),
        **dict.fromkeys(("tail", "before"), text),
        "until": size,
        "begins": pair,
    },
    "status": {
        **dict.fromkeys(("engine_status", "signal"), whole),
        **dict.fromkeys(("time", "sent", "began"), time),
        **dict.fromkeys(("reason", "cause"), text),
        "state": state,
        "left": pids,
        "killed": pids,
        "behind": lambda value: [made(each, BEHIND) for each in list(value)[:MOST_PIDS]],
        "stuck": texts,
        "builds": texts,
        "disk_full": flag,
        "kernel": kernel,
    },
    "clock": {"up": whole, "sent": time},
    "failed": {"message": text, "hint": text},
    "end": {},
    "over": {},
    "signal": {"number": lambda value: bounded(value, 65)},
    "stacks": {"rank": whole, "at": text, "frames": lambda value: str(value)[: 1 << 15]},
}


def why(value: Any) -> "dict[str, Any]":
    return made(value, dict.fromkeys(("kind", "message", "hint"), text))


def first(value: Any) -> "dict[str, Any]":
    return made(value, FIRST)


FIRST: "dict[str, Callable[[Any], Any]]" = {
    **dict.fromkeys(("node_rank", "exit_code", "rank", "local_rank", "signal"), whole),
    **dict.fromkeys(("host", "what", "tail"), text),
    "time": time,
    "why": why,
}
VERDICT: "dict[str, Callable[[Any], Any]]" = {
    **dict.fromkeys(("by", "host", "who", "message"), text),
    "code": lambda value: bounded(value, 256),
    "attempt": whole,
    "first": first,
    "unknown": texts,
    "time": time,
}


def made(found: "dict[str, Any]", fields: "Mapping[str, Callable[[Any], Any]]") -> "dict[str, Any]":
    """Returns the fields of `found` that are in `fields`, each value checked by its function there. None stays None."""
    return {name: None if found[name] is None else read(found[name]) for name, read in fields.items() if name in found}


def verdict_of(found: Any) -> "dict[str, Any]":
    """Returns the leading container's verdict, checked: any process may be the one at MASTER_ADDR. Raises ValueError if
    a field is missing."""
    verdict = made(found, VERDICT)
    if set(verdict) != set(VERDICT) or None in [verdict[name] for name in ("by", "code", "message", "unknown")]:
        raise ValueError("a verdict lacks something")
    return verdict


def news_of(message: "dict[str, Any]") -> "dict[str, Any]":
    """Returns a report, checked, as the rule of the run (node/gang/) takes it."""
    kind = text(message["event"])
    news = made(message, FIELDS[kind])
    needed = {"rank": "rank", "status": "state", "failed": "message", "clock": "sent", "signal": "number"}.get(kind)
    if needed is not None and news.get(needed) is None:
        raise ValueError("a report lacks its %s" % needed)
    return dict({"up": None} if kind == "clock" else {}, event=kind, **news)
