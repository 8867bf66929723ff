"""A run: nodes' messages about its start, its ranks and its end."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import Count, Failed
from fleet.protocol.state import is_log, is_run_id

Whole = Annotated[int, lambda number: abs(number) < 1 << 31]
RunId = Annotated[str, is_run_id]
Time = Annotated[float, lambda seconds: abs(seconds) < 1e12]  # since the epoch, on the node's clock

# dir: of the run, on the node
Started = TypedDict("Started", {"event": Literal["started"], "pid": int, "dir": str})


class NotStarted(Failed, total=False):
    """forbidden: the run was stopped for good."""

    forbidden: bool


# left, of earlier attempts. port: the first of those in the request that is free. forbidden: the run was stopped for
# good
Ready = TypedDict("Ready", {"event": Literal["ready"], "left": list[int], "port": Whole | None, "forbidden": bool})
# output `id` is that file's from here on; its first byte is at `offset`
Stream = TypedDict("Stream", {"event": Literal["stream"], "id": int, "name": Annotated[str, is_log], "offset": int})
_Rank = TypedDict("_Rank", {"event": Literal["rank"], "rank": Whole})


class RankEnded(_Rank, total=False):
    """rank<R>.json. begins: bytes of its stdout's and stderr's logs that earlier attempts wrote. lost: of both, those
    that it wrote and its node's disk did not take. asked: it ended after a head had the run stopped. signalled: after
    its engine had it end. until: bytes of its stderr's log when the first SIGTERM came; none did where it is absent."""

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


# a line of the kernel's log. time: about when, on the node's clock. rank: whose process it names
KernelLine = TypedDict("KernelLine", {"text": str, "time": Time, "rank": Whole | None})

# what failed first. exit_code: the run's, too. time: on the clock of who decided. what, why: see ends.Failure. tail:
# the last that it wrote, TAIL_BYTES at most.
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
# How a run ended, as every head has it: who leads it decides, once. One that goes with a stop has the reason, and is
# written on each node before its ranks are stopped. by: "done", "interrupt" (at the head that led it), "stop" ('fleet
# stop'), "queue" (the batch system that owns the nodes), "stall", "lost" (a node: host), "lease" (no message of a head
# came for so long) or "failure" (of a rank, an engine or a node, on host). code: the run's exit code. who: USER@HEAD.
# message: for people. unknown: hosts of which the end was not known. time: when that was decided, on the clock of its
# author.
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
    """left: pids that would not die; stuck: as text. was: "running", "gone" (it had ended), "unknown" (never was).
    verdict: that is written there."""

    stuck: list[str]
    verdict: Verdict | None


# what scripts that ended well left in their background, and fleet had to end. commands: the first of them
Leftovers = TypedDict("Leftovers", {"rank": Whole, "count": Whole, "commands": list[str]})

# status.json. killed: ranks that had to be, or what they left. kernel: lines since the run's beginning that may show
# why it ended. builds: locks that a rank waits for in vain. began: when this node began to end its part. end: where a
# head had it stopped, why.
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


# all has been sent; the sizes that files have in the end
End = TypedDict("End", {"event": Literal["end"], "sizes": dict[str, int]})

# the time of this node's clock. up: ranks that live here, of an elastic run
Clock = TypedDict("Clock", {"event": Literal["clock"], "up": Whole | None, "sent": Time})
Superseded = TypedDict("Superseded", {"event": Literal["superseded"]})
Judged = TypedDict("Judged", {"event": Literal["verdict"], "verdict": Verdict})
News = RankEnded | Status | Clock | Superseded | Judged | Failed
Followed = Stream | End | News

# a run's description of itself, so that any head can find it and take it up. owner: USER@HEAD. started: by its clock
# hosts: the name that its head has for each node -> its first rank and how many, in node-rank order. attempt: how many
# starts of the whole gang came before this one; max_restarts: how many failures it may take. spares: how many lost
# nodes it may take. stall_timeout: seconds of silence after which it is over, None: never. least: of an elastic run,
# nodes that must be left, else 0. stop_grace: seconds between SIGTERM and SIGKILL where a user has it stopped.
# max_log: bytes that a log here keeps of what the leader has; 0: all.
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

# a run on one node. protocol: of the fleet that started it, see state.PROTOCOL. devices: GPUs that it was given, None:
# all. host: what the head that started it calls this node. alive: its supervisor, or the process in its place. up: how
# many of its ranks live. lease, grace, node_timeout, silent, unheard: seconds; silent: since a rank wrote its last,
# None: none has. last: that line. unheard: since a head was there, None: it needs none any more. term: of its last
# leader.
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
# a run that may be described by other fields, or by none
SomeRun = TypedDict("SomeRun", {"run": RunId})
# runs: each is read as a RunHere on its own, so that none hides the others
RunsHere = TypedDict("RunsHere", {"event": Literal["runs"], "runs": list[SomeRun]})

# what a run that is to start receives of one that lives there
LiveRun = TypedDict("LiveRun", {"run": RunId, "about": About | None, "devices": list[Whole] | None})
# those that keep another one from its start
Neighbours = TypedDict("Neighbours", {"event": Literal["neighbours"], "runs": list[LiveRun]})

# where in its logs begins what was written since
Since = TypedDict("Since", {"event": Literal["since"], "offsets": dict[str, Count]})
