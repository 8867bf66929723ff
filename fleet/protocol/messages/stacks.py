"""Defines the message with the stacks of a run's ranks."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.run import RunId, Time, Whole

MAX_NAME = 300  # of a function, a file: C++ has names without end
MAX_RAS = 16 << 10

Short = Annotated[str, lambda text: len(text) <= MAX_NAME]
# name: of the function. file: its source, or for native code its library, "kernel" for the kernel's. line: 0: unknown
Frame = TypedDict("Frame", {"name": Short, "file": Short, "line": Whole, "native": bool})
# frames: the innermost first. main: it is the process's main thread
Thread = TypedDict("Thread", {"name": Short, "main": bool, "frames": list[Frame]})
# pid: of the process that trains. by: the source of it. state: one letter, as ps has it. waits: in which function of
# the kernel, "" for none. why: it is not by py-spy
RankStack = TypedDict(
    "RankStack",
    {
        "rank": Whole,
        "pid": int,
        "by": Literal["py-spy", "faulthandler", "kernel"],
        "state": Short,
        "waits": Short,
        "threads": list[Thread],
        "why": str | None,
    },
)
# a collective that a rank called. seq: its number in the process group. sizes: shapes and types of its tensors. state:
# "scheduled", "started", "completed". age: seconds from the call to the dump; of one that waits, from the rank's last
# call that is through, if that is later. frames: the innermost first
Call = TypedDict(
    "Call", {"seq": Whole, "op": Short, "sizes": Short, "state": Short, "age": Time, "frames": list[Frame]}
)
# ranks: its members, null: not known. last: the number of the rank's last call. completed: its last one that is
# through; pending: its first one that is not
Group = TypedDict(
    "Group",
    {
        "name": Short,
        "desc": Short,
        "ranks": list[Whole] | None,
        "last": Whole,
        "completed": Call | None,
        "pending": Call | None,
    },
)
# whole: the recorder has dropped no call yet. apart: the rank may wait in a call between two ranks, or of gloo, that is
# not known to be over. old: seconds since the dump. why: the reason why no dump can be read
Recorded = TypedDict(
    "Recorded", {"rank": Whole, "whole": bool, "apart": bool, "old": Time, "groups": list[Group], "why": Short | None}
)
# own_master: an address of this node at which a launcher of this node waits for other nodes, or null. calls: of ranks
# whose flight recorder writes dumps. ras: the report of NCCL's RAS, "" without
Stacks = TypedDict(
    "Stacks",
    {
        "event": Literal["stacks"],
        "ranks": list[RankStack],
        "own_master": Short | None,
        "calls": list[Recorded],
        "ras": Annotated[str, lambda text: len(text) <= MAX_RAS],
    },
)

# ranks: only these, None: all. ended: also dumps of ranks that have ended, as those that timed out have. native: also
# frames of C and C++, for which each rank is held for a moment
StacksSpec = TypedDict("StacksSpec", {"run": RunId, "ranks": list[int] | None, "ended": bool, "native": bool})
