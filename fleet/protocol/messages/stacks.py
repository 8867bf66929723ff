"""Defines the message with the stacks of a run's ranks."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.run import RunId, Whole

MAX_NAME = 300  # of a function, a file: C++ has names without end

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
# own_master: an address of this node, where that is where something of the run waits for those of other nodes
Stacks = TypedDict("Stacks", {"event": Literal["stacks"], "ranks": list[RankStack], "own_master": Short | None})

# ranks: only these, None: all. native: also frames of C and C++, for which each rank is held for a moment
StacksSpec = TypedDict("StacksSpec", {"run": RunId, "ranks": list[int] | None, "native": bool})
