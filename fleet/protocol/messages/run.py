"""Defines the messages of a run: the nodes', about its start, its ranks and its end."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import Count, Failed
from fleet.protocol.state import is_log, is_run_id

Whole = Annotated[int, lambda number: abs(number) < 1 << 31]
RunId = Annotated[str, is_run_id]
Time = Annotated[float, lambda seconds: abs(seconds) < 1e12]  # since the epoch, on the node's clock

# dir: of the run, on the node
Started = TypedDict("Started", {"event": Literal["started"], "pid": int, "dir": str})


class NotStarted(Failed, total=False):
    """The node did not start its part. forbidden: the run was stopped for good."""

    forbidden: bool


# left: pids of earlier attempts. port: the first free one of those in the request. forbidden: the run was stopped for
# good
Ready = TypedDict("Ready", {"event": Literal["ready"], "left": list[int], "port": Whole | None, "forbidden": bool})
# from now on output `id` is this file's; its first byte is at `offset`
Stream = TypedDict("Stream", {"event": Literal["stream"], "id": int, "name": Annotated[str, is_log], "offset": int})
_Rank = TypedDict("_Rank", {"event": Literal["rank"], "rank": Whole})


class RankEnded(_Rank, total=False):
    """Holds rank<R>.json. begins: sizes of its stdout's and stderr's logs when this attempt began. lost: bytes of both
    that the node's disk did not take. asked: the rank ended after a head had the run stopped. signalled: it ended after
    its engine stopped it. until: size of its stderr's log at the first SIGTERM; absent if there was none."""

    local_rank: Whole | None
    status: Whole | None
    signal: Whole | None
    time: Time
    attempt: Whole
    begins: tuple[int, int] | None
    lost: tuple[Count, Count]
    asked: bool
    signalled: bool
    until: Count
    sent: Time


# a line of the kernel's log. time: approximate, on the node's clock. rank: of the process that it names
KernelLine = TypedDict("KernelLine", {"text": str, "time": Time, "rank": Whole | None})

# the first failure. exit_code: the run's, too. time: on the clock of the process that decided. what, why: see
# ends.Failure. tail: the end of its output, TAIL_BYTES at most.
Why = TypedDict("Why", {"kind": str, "message": str, "hint": str | None})
FailedWhat = Literal[
    "rank",
    "vanished",
    "engine",
    "node",
    "link",
    "stalled",
    "lease",
    "frozen",
    "signal",
    "supervisor",
    "removed",
    "reboot",
]
First = TypedDict(
    "First",
    {
        "host": str,
        "node_rank": Whole,
        "exit_code": Whole,
        "time": Time,
        "rank": Whole | None,
        "local_rank": Whole | None,
        "signal": Whole | None,
        "what": FailedWhat,
        "why": Why | None,
        "tail": str,
    },
)
# How a run ended, the same for every head: its leader decides it, once. A verdict that comes with a stop has the
# reason, and is written on each node before its ranks are stopped. by: "done", "interrupt" (at the head that led it),
# "stop" ('fleet stop', or scancel), "queue" (the batch system that owns the nodes), "stall", "lost" (the node
# `host`), "lease" (no head sent a message for that long) or "failure" (of a rank, an engine or a node, on `host`).
# code: the run's exit code. who: USER@HEAD. message: for people. unknown: hosts whose end was not known. time: of the
# decision, on the leader's clock.
EndedBy = Literal["done", "interrupt", "stop", "queue", "stall", "lost", "lease", "failure"]
Verdict = TypedDict(
    "Verdict",
    {
        "by": EndedBy,
        "host": str | None,
        "code": Whole,
        "who": str,
        "message": str,
        "attempt": Whole,
        "first": First | None,
        "unknown": list[str],
        "time": Time,
    },
)

_Stopped = TypedDict("_Stopped", {"event": Literal["stopped"], "left": list[int], "was": str})


class Stopped(_Stopped, total=False):
    """The run was stopped on the node. left: pids that survived SIGKILL; stuck: the same as text. was: "running",
    "gone" (it had ended), "unknown" (never there). verdict: the one written there."""

    stuck: list[str]
    verdict: Verdict | None


# background processes that scripts left after a normal end, and that fleet ended. commands: of the first ones
Leftovers = TypedDict("Leftovers", {"rank": Whole, "count": Whole, "commands": list[str]})

# status.json. killed: ranks that were killed, or whose background processes were. kernel: lines since the run's
# beginning that may show why it ended. builds: locks without a holder that a rank waits for. began: when this node
# began to end its part. end: the verdict, if a head had the run stopped.
RunState = TypedDict(
    "RunState",
    {
        "state": str,
        "reason": str | None,
        "cause": str | None,
        "engine_status": Whole | None,
        "signal": Whole | None,
        "left": list[int] | None,
        "stuck": list[str] | None,
        "disk_full": bool | None,
        "builds": list[str],
        "kernel": list[KernelLine] | None,
        "began": Time | None,
        "end": Verdict | None,
        "killed": list[Whole],
        "behind": list[Leftovers],
        "time": Time,
        "sent": Time,
    },
    total=False,
)


class Status(RunState):
    event: Literal["status"]


# all has been sent; sizes: final sizes of the files
End = TypedDict("End", {"event": Literal["end"], "sizes": dict[str, int]})

# this node's clock. up: ranks that live here, for an elastic run
Clock = TypedDict("Clock", {"event": Literal["clock"], "up": Whole | None, "sent": Time})
Superseded = TypedDict("Superseded", {"event": Literal["superseded"]})
Judged = TypedDict("Judged", {"event": Literal["verdict"], "verdict": Verdict})
News = RankEnded | Status | Clock | Superseded | Judged | Failed
Followed = Stream | End | News

# a run's description of itself, with which any head can find it and lead it. owner: USER@HEAD. started: by the owner's
# clock. hosts: the head's name of each node -> (its first rank, their number), in node-rank order. attempt: number of
# earlier starts of all ranks; max_restarts: how often they may be started again. spares: lost nodes that can be
# replaced. stall_timeout: seconds of silence after which it is over, None: never. least: nodes that an elastic run
# needs, else 0. stop_grace: seconds between SIGTERM and SIGKILL if a user stops it. max_log: bytes that the node keeps
# of a log that the leader has; 0: all.
About = TypedDict(
    "About",
    {
        "engine": str,
        "script": str,
        "owner": str,
        "started": Time,
        "nnodes": Whole,
        "hosts": dict[str, tuple[Whole, Whole]],
        "world_size": Whole,
        "master": str,
        "attempt": Whole,
        "max_restarts": Whole,
        "spares": Whole,
        "stall_timeout": float | None,
        "least": Whole,
        "stop_grace": float,
        "max_log": Whole,
    },
)

# a run on one node. protocol: of the fleet that started it, see state.PROTOCOL. devices: its GPUs, None: all. host:
# this node's name on the head that started it. alive: its supervisor, or the process in its place, lives. up: number of
# ranks that live. lease, grace, node_timeout, silent, unheard: seconds. silent: since a rank's last line, None: no rank
# has written. last: that line. unheard: since a head's last message, None: it needs no head any more. term: the number
# of its last leader.
RunHere = TypedDict(
    "RunHere",
    {
        "run": RunId,
        "protocol": Whole,
        "attempt": Whole,
        "host": str,
        "node_rank": Whole,
        "ranks": list[Whole],
        "devices": list[Whole] | None,
        "cwd": str | None,
        "about": About | None,
        "lease": float | None,
        "grace": float,
        "node_timeout": float,
        "status": RunState,
        "alive": bool,
        "up": Whole,
        "ended": list[RankEnded],
        "silent": float | None,
        "last": str,
        "unheard": float | None,
        "term": Whole,
        "verdict": Verdict | None,
    },
)
# a run with any other fields, or none
SomeRun = TypedDict("SomeRun", {"run": RunId})
# runs: each is decoded as a RunHere separately, so that an invalid one does not hide the others
RunsHere = TypedDict("RunsHere", {"event": Literal["runs"], "runs": list[SomeRun]})

# what a new run gets to know of a live run on the node
LiveRun = TypedDict("LiveRun", {"run": RunId, "about": About | None, "devices": list[Whole] | None})
# the runs that keep another run from starting
Neighbours = TypedDict("Neighbours", {"event": Literal["neighbours"], "runs": list[LiveRun]})

# log -> offset at which the requested output begins
Since = TypedDict("Since", {"event": Literal["since"], "offsets": dict[str, Count]})
