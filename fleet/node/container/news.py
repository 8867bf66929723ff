"""Checks the reports of a container. Most of the events in them are those of the node program follow.py.

Any process may connect and send anything, so each value is checked and built again. For a value of another form, a
check raises one of NONSENSE."""

from functools import partial

from fleet.node.base.types import Any, Callable, Mapping
from fleet.node.container.channel import bounded

NONSENSE = (ValueError, KeyError, TypeError, AttributeError)  # raised for a message that fleet did not send
TEXT = 4096  # longer texts are cut
STATES = ("running", "stopping", "exited", "stopped", "lost")
MOST_PIDS, MOST_LINES = 100, 20


small_int, size = partial(bounded, most=1 << 31), partial(bounded, most=1 << 53)


def time(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= 1e12:  # "not <=" refuses nan, too
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
    return [small_int(pid) for pid in list(value)[:MOST_PIDS]]


def texts(value: Any) -> "list[str]":
    return [text(each) for each in list(value)[:MOST_PIDS]]


def pair(value: Any) -> "tuple[int, int]":
    out, err = value
    return size(out), size(err)


def kernel(value: Any) -> "list[dict[str, Any]]":
    return [checked(line, {"text": text, "time": time, "rank": small_int}) for line in list(value)[-MOST_LINES:]]


LEFTOVER_FIELDS: "dict[str, Callable[[Any], Any]]" = {"rank": small_int, "count": small_int, "commands": texts}
FIELDS: "dict[str, dict[str, Callable[[Any], Any]]]" = {
    "rank": {
        **dict.fromkeys(("rank", "local_rank", "status", "signal", "attempt"), small_int),
        **dict.fromkeys(("time", "sent"), time),
        **dict.fromkeys(("asked", "signalled"), flag),
        **dict.fromkeys(("tail", "before"), text),
        "until": size,
        "begins": pair,
    },
    "status": {
        **dict.fromkeys(("engine_status", "signal"), small_int),
        **dict.fromkeys(("time", "sent", "began"), time),
        **dict.fromkeys(("reason", "cause"), text),
        "state": state,
        "left": pids,
        "killed": pids,
        "behind": lambda value: [checked(each, LEFTOVER_FIELDS) for each in list(value)[:MOST_PIDS]],
        "stuck": texts,
        "builds": texts,
        "disk_full": flag,
        "kernel": kernel,
    },
    "clock": {"up": small_int, "sent": time},
    "failed": {"message": text, "hint": text},
    "end": {},
    "over": {},
    "signal": {"number": lambda value: bounded(value, 65)},
    "stacks": {"rank": small_int, "at": text, "frames": lambda value: str(value)[: 1 << 15]},
}


WHY: "dict[str, Callable[[Any], Any]]" = dict.fromkeys(("kind", "message", "hint"), text)
FIRST: "dict[str, Callable[[Any], Any]]" = {
    **dict.fromkeys(("node_rank", "exit_code", "rank", "local_rank", "signal"), small_int),
    **dict.fromkeys(("host", "what", "tail"), text),
    "time": time,
    "why": lambda value: checked(value, WHY),
}
VERDICT: "dict[str, Callable[[Any], Any]]" = {
    **dict.fromkeys(("by", "host", "who", "message"), text),
    "code": lambda value: bounded(value, 256),
    "attempt": small_int,
    "first": lambda value: checked(value, FIRST),
    "unknown": texts,
    "time": time,
}


def checked(found: "dict[str, Any]", fields: "Mapping[str, Callable[[Any], Any]]") -> "dict[str, Any]":
    """Returns the fields of `found` that are in `fields`. The function there checks each value, but a None is kept."""
    return {name: None if found[name] is None else read(found[name]) for name, read in fields.items() if name in found}


def verdict_of(found: Any) -> "dict[str, Any]":
    """Returns the leading container's verdict, checked, because any process may listen at MASTER_ADDR. Raises one of
    NONSENSE if a field is missing or has another form."""
    verdict = checked(found, VERDICT)
    if set(verdict) != set(VERDICT) or None in [verdict[name] for name in ("by", "code", "message", "unknown")]:
        raise ValueError("a verdict lacks something")
    return verdict


def checked_report(message: "dict[str, Any]") -> "dict[str, Any]":
    """Returns a report, checked, in the form for the rule of the run (node/gang/). Raises one of NONSENSE if a field is
    missing or has another form."""
    kind = text(message["event"])
    news = checked(message, FIELDS[kind])
    needed = {"rank": "rank", "status": "state", "failed": "message", "clock": "sent", "signal": "number"}.get(kind)
    if needed is not None and news.get(needed) is None:
        raise ValueError("a report lacks its %s" % needed)
    return dict({"up": None} if kind == "clock" else {}, event=kind, **news)
