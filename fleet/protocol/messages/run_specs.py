"""A run: what the head sends to the programs of its nodes."""

from typing import Any, TypedDict

from fleet.protocol.messages.run import About, Verdict

_Follow = TypedDict("_Follow", {"run": str, "offsets": dict[str, int]})


class FollowSpec(_Follow, total=False):
    """attempt: which one's files, the last one's if need be. once: what there is now, and no more. passive: who only
    looks on renews no lease. heartbeat: every so many seconds. term: of who leads the run. waits: for its verdict.
    logs: their bytes are sent, too."""

    term: int
    waits: bool
    attempt: int | None
    once: bool
    passive: bool
    heartbeat: float
    logs: bool


# prefix: of the ids of the runs in the request. live: only those that have not ended
RunsSpec = TypedDict("RunsSpec", {"prefix": str, "live": bool})
# devices: that it is to have, None: all
NeighboursSpec = TypedDict("NeighboursSpec", {"run": str, "devices": list[int] | None})
SinceSpec = TypedDict("SinceSpec", {"run": str, "ago": float})
_Stop = TypedDict("_Stop", {"run": str, "grace": float, "reason": str})


class StopSpec(_Stop, total=False):
    """end: why, None: this is none. attempt: the last one that is meant; without it the run is over for good.
    verdict: on the run, where that is over."""

    end: Verdict | None
    attempt: int
    verdict: Verdict | None


# attempt: that is to begin. ports: one of them is wanted, on the node where ranks meet
_Ready = TypedDict("_Ready", {"run": str, "attempt": int, "ports": list[int]})


# of SPEC what describes a run that has not begun on a node
Part = TypedDict(
    "Part",
    {
        "host": str,
        "node_rank": int,
        "ranks": list[int],
        "devices": list[int] | None,
        "cwd": str,
        "lease": float | None,
        "grace": float,
        "node_timeout": float,
        "about": About,
    },
)


class ReadySpec(_Ready, total=False):
    """pause: seconds to wait first. part: by which a node that is new to the run knows of it meanwhile."""

    pause: float
    part: Part


# of the code that the run begins from: it is not replaced before `settle` seconds after its start
CodeInUse = TypedDict("CodeInUse", {"state": str, "digest": str, "settle": float})


class Container(TypedDict, total=False):
    """Describes the container of an engine: image and args as requested; the node adds what facts/runtimes.py finds."""

    image: str
    args: list[str]
    runtime: str
    path: str
    id: str


# files: name -> text, put into the run's folder. lease, grace, node_timeout: seconds. argv: arguments, or what only the
# node knows. env: literal; env_expand: expanded there; unset: a pattern of the names that it does not pass on. alone:
# it shares its GPUs with no other run. sample: seconds between two samples, 0: none.
StartSpec = TypedDict(
    "StartSpec",
    {
        "run": str,
        "host": str,
        "node_rank": int,
        "argv": list[Any],
        "env": dict[str, str],
        "env_expand": dict[str, str],
        "unset": str | None,
        "cwd": str,
        "python": str | None,
        "activate": str | None,
        "container": Container | None,
        "ranks": list[int],
        "devices": list[int] | None,
        "lease": float | None,
        "grace": float,
        "node_timeout": float,
        "time": float,
        "code": CodeInUse | None,
        "files": dict[str, str],
        "about": About,
        "alone": bool,
        "sample": float,
    },
)


class Starting(StartSpec, total=False):
    """umask: the user's, which supervise notes."""

    umask: int
