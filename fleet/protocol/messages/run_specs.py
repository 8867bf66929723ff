"""Defines the requests of a run: the head's, to the programs on its nodes."""

from typing import Any, TypedDict

from fleet.protocol.messages.run import About, Verdict

_Follow = TypedDict("_Follow", {"run": str, "offsets": dict[str, int]})


class FollowSpec(_Follow, total=False):
    """The request to follow a run. attempt: whose files to follow, None: the last one's. once: send what exists now,
    and end. passive: a reader that renews no lease. heartbeat: seconds between heartbeats. term: number of the run's
    leader. waits: wait for the verdict. logs: send the bytes of the logs, too."""

    term: int
    waits: bool
    attempt: int | None
    once: bool
    passive: bool
    heartbeat: float
    logs: bool


# prefix: of the runs' ids. live: only runs that have not ended
RunsSpec = TypedDict("RunsSpec", {"prefix": str, "live": bool})
# devices: those that the new run is to have, None: all
NeighboursSpec = TypedDict("NeighboursSpec", {"run": str, "devices": list[int] | None})
SinceSpec = TypedDict("SinceSpec", {"run": str, "ago": float})
_Stop = TypedDict("_Stop", {"run": str, "grace": float, "reason": str})


class StopSpec(_Stop, total=False):
    """The request to stop a run. end: the verdict, None: this stop is no end of the run. attempt: the last one to stop;
    without it the run is over for good. verdict: on the run, if that is over."""

    end: Verdict | None
    attempt: int
    verdict: Verdict | None


# attempt: the one that is to begin. ports: one of them must be free, on the node where ranks meet
_Ready = TypedDict("_Ready", {"run": str, "attempt": int, "ports": list[int]})


# the fields of SPEC that describe a run which has not begun on a node
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
    """The request to prepare an attempt. pause: seconds to wait first. part: describes the run to a node that is new to
    it."""

    pause: float
    part: Part


# the code that the run begins with; a sync does not replace it until `settle` seconds after the start
CodeInUse = TypedDict("CodeInUse", {"state": str, "digest": str, "settle": float})


class Container(TypedDict, total=False):
    """Describes the container of an engine: image and args as requested; the node adds what facts/runtimes.py finds."""

    image: str
    args: list[str]
    runtime: str
    path: str
    id: str


# files: name -> text of files in the run's folder. lease, grace, node_timeout: seconds. argv: arguments; those that
# only the node knows are objects. env: literal; env_expand: expanded on the node; unset: pattern of the variables that
# ranks do not get. alone: no other run shares its GPUs. sample: seconds between two samples, 0: none.
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
    """A StartSpec that the supervisor has completed. umask: the user's."""

    umask: int
