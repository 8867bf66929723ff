"""A run: what nodes say of its start, of its ranks and of its end."""

from typing import Annotated, Any, Literal, TypedDict

from fleet.protocol.messages.values import Failed, Matching
from fleet.protocol.state import LOG_NAME

Whole = Annotated[int, lambda number: abs(number) < 1 << 31]
Time = Annotated[float, lambda seconds: abs(seconds) < 1e12]  # since the epoch, on the node's clock

# dir: of the run, on the node
Started = TypedDict("Started", {"event": Literal["started"], "pid": int, "dir": str})
# left: pids that would not die. was: "running", "gone" (it had ended), or "unknown" (it never began there)
Stopped = TypedDict("Stopped", {"event": Literal["stopped"], "left": list[int], "was": str})
# output `id` is that file's from here on; its first byte is at `offset`
Stream = TypedDict(
    "Stream", {"event": Literal["stream"], "id": int, "name": Annotated[str, Matching(LOG_NAME)], "offset": int}
)
_Rank = TypedDict("_Rank", {"event": Literal["rank"], "rank": Whole})


class RankEnded(_Rank, total=False):
    """rank<R>.json. begins: bytes of its stdout's and stderr's logs that earlier attempts wrote."""

    local_rank: Whole | None
    status: Whole | None
    signal: Whole | None
    time: Time
    attempt: Whole
    begins: tuple[int, int] | None


# status.json. builds: locks that a rank waits for in vain. began: when this node began to end its part.
RunState = TypedDict(
    "RunState",
    {
        "state": str,
        "reason": str | None,
        "cause": str | None,
        "engine_status": Whole | None,
        "signal": Whole | None,
        "left": list[int] | None,
        "disk_full": bool | None,
        "builds": list[str],
        "began": Time | None,
        "time": Time,
    },
    total=False,
)


class Status(RunState):
    event: Literal["status"]


# all has been sent; the sizes that files have in the end
End = TypedDict("End", {"event": Literal["end"], "sizes": dict[str, int]})

News = RankEnded | Status | Failed
Followed = Stream | End | News

# -- what the head asks for ---------------------------------------------------------------------------------------
FollowSpec = TypedDict("FollowSpec", {"run": str, "offsets": dict[str, int]})
StopSpec = TypedDict("StopSpec", {"run": str, "grace": float, "reason": str})
# of the code that the run begins from: it is not replaced before `settle` seconds after its start
CodeInUse = TypedDict("CodeInUse", {"state": str, "digest": str, "settle": float})


# files: name -> text, put into the run's folder. lease, grace, node_timeout: seconds. argv: words, or what only the
# node knows. env: literal; env_expand: expanded there.
StartSpec = TypedDict(
    "StartSpec",
    {
        "run": str,
        "host": str,
        "node_rank": int,
        "argv": list[Any],
        "env": dict[str, str],
        "env_expand": dict[str, str],
        "cwd": str,
        "python": str | None,
        "activate": str | None,
        "ranks": list[int],
        "lease": float | None,
        "grace": float,
        "node_timeout": float,
        "time": float,
        "code": CodeInUse | None,
        "files": dict[str, str],
    },
)


class Starting(StartSpec, total=False):
    """umask: the user's, which supervise notes."""

    umask: int
