"""Groups ranks by where their stacks are, and finds the odd ones out. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleet.inventory.nodeset import fold
from fleet.model import grouped
from fleet.node.gang.ends import ranks_text
from fleet.protocol.messages.stacks import Frame, RankStack
from fleet.rules.judge import groups
from fleet.rules.units import counted

_LIBRARY = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python\d[^/]*/|^<frozen ")
_STANDARD = re.compile(r".*/lib/python\d[^/]*/(?!(?:site|dist)-packages/)|^<frozen ")
IMPORTING = "<frozen importlib._bootstrap>"
# a file in the stack -> what the rank does; the innermost function would show little
LANDMARKS = (("torch/utils/data/dataloader.py", "DataLoader"), (IMPORTING, "import"))
NAME_WIDTH = 40
NO_PY_SPY = "no py-spy there"
BRING_PY_SPY = "py-spy shows more: 'fleet sync --wheels FILE' installs it, with py-spy as a line of FILE"


@dataclass(frozen=True)
class Place:
    """Describes ranks whose main threads are in the same place. ranks: sorted. hosts: the hosts of these ranks. at:
    "all_reduce (train.py:20)". of: the most detailed report of these ranks. odd: most ranks are at another place of the
    code."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    at: str
    of: RankStack
    odd: bool = False

    @property
    def who(self) -> str:
        """Returns "ranks 0-2 on lab[01-03]"."""
        return f"{ranks_text(self.ranks)} on {fold(self.hosts)}"

    def as_json(self) -> dict[str, Any]:
        frames = main_frames(self.of)
        return {"ranks": self.ranks, "hosts": self.hosts, "at": self.at, "odd": self.odd, "frames": frames}


def main_frames(stack: RankStack) -> list[Frame]:
    """Returns the frames of a rank's main thread, the innermost first."""
    threads = sorted(stack["threads"], key=lambda thread: not thread["main"])
    return threads[0]["frames"] if threads else []


def short(file: str) -> str:
    """Returns a path in its usual short form: "torch/nn/modules/module.py", "train.py"."""
    inner = _LIBRARY.sub("", file)
    return inner if inner != file else file.rpartition("/")[2]


def plain_name(name: str) -> str:
    """Returns a function's name without the functions around it, and without C++ types."""
    inner = name.rpartition("<locals>.")[2]
    return inner if inner.startswith("<") else re.split("[<(]", inner)[0] or inner


def place_of(stack: RankStack) -> str:
    """Returns the place of a rank in short: the function that matters, and the line in the user's own code."""
    return place_in(main_frames(stack), stack["waits"])


def place_in(frames: Sequence[Frame], waits: str = "") -> str:
    """Returns the place of a thread by its frames. waits: the kernel function in which it waits."""
    python = [frame for frame in frames if not frame["native"]]
    if not python:
        name, file = (frames[0]["name"], short(frames[0]["file"])) if frames else (waits, "kernel")
        return f"{plain_name(name)} ({file})" if name else "an unknown place"
    own = next((frame for frame in python if not _LIBRARY.match(frame["file"])), None)
    inner = next((frame for frame in python if not _STANDARD.match(frame["file"])), python[0])
    calls = [frame["file"] for frame in python if frame["name"] != "<module>"]  # without imports
    names = [name for file in calls for part, name in LANDMARKS if file.endswith(part)]
    name = names[0] if names else plain_name(inner["name"]).rpartition(".")[2]
    where = own or inner
    return f"{name} ({short(where['file'])}:{where['line']})"


def _identity(stack: RankStack) -> object:
    """Returns a value that is equal for ranks in the same place. The value consists of the Python frames, whichever
    tool reported them; without Python frames, of the names of all frames."""
    frames = main_frames(stack)
    python = [
        (frame["name"].rpartition(".")[2], frame["file"], frame["line"]) for frame in frames if not frame["native"]
    ]
    return python or [plain_name(frame["name"]) for frame in frames] or stack["waits"]


def places(found: Mapping[str, Sequence[RankStack]]) -> list[Place]:
    """Returns the ranks grouped by equal stacks, the largest group first. found: host -> its stacks. If more than half
    of the ranks are at one place of the code, all others are odd."""
    ordered = sorted(((h, stack) for h, stacks in found.items() for stack in stacks), key=lambda it: it[1]["rank"])
    alike = groups({number: repr(_identity(stack)) for number, (_, stack) in enumerate(ordered)})
    result = [_place([ordered[number] for number in numbers]) for _, numbers in alike]
    result.sort(key=lambda it: (-len(it.ranks), it.ranks))
    standing = Counter(it.at for it in result for _ in it.ranks)
    (most, ranks), *_ = [*standing.most_common(1), ("", 0)]
    return [replace(it, odd=ranks * 2 > len(ordered) and it.at != most) for it in result]


def _place(members: Sequence[tuple[str, RankStack]]) -> Place:
    """Returns the place of these (host, stack), sorted by rank."""
    stacks = [stack for _, stack in members]
    richest = min(stacks, key=lambda it: ("py-spy", "faulthandler", "kernel").index(it["by"]))
    hosts = tuple(dict.fromkeys(host for host, _ in members))
    return Place(tuple(stack["rank"] for stack in stacks), hosts, place_of(richest), richest)


def in_short(found: Sequence[Place]) -> str:
    """Returns "ranks 0-30 in all_reduce (train.py:20); rank 31 on gpu4 in DataLoader (train.py:18)"."""
    at = [
        replace(
            same[0],
            ranks=tuple(rank for it in same for rank in it.ranks),
            hosts=tuple(dict.fromkeys(host for it in same for host in it.hosts)),
        )
        for same in grouped((it.at, it) for it in found).values()
    ]
    parts = [f"{it.who if it.odd else ranks_text(it.ranks)} in {it.at}" for it in at[:4]]
    more = len(at) - len(parts)
    return "; ".join(parts) + (f"; {counted(more, 'other place')}" if more else "")


def lines(found: Sequence[Place], *, threads: bool = False) -> Iterator[str]:
    """Yields each place with its stack as text, the innermost frame first. threads: show all threads, not only the main
    one."""
    for place in found:
        yield f"{place.who} in {place.at}{', the odd one out' * place.odd}"
        for thread in sorted(place.of["threads"], key=lambda it: not it["main"]):
            if not thread["main"] and not threads:
                continue
            if threads:
                yield f"  thread {thread['name'] or '?'}"
            yield from (f"    {_line(frame)}" for frame in thread["frames"] if "<frozen importlib" not in frame["file"])
        if place.of["waits"]:
            yield f"    {place.of['waits']:<{NAME_WIDTH}} kernel"


def remarks(found: Mapping[str, Sequence[RankStack]]) -> Iterator[str]:
    """Yields why some ranks have less detail than possible, and on which hosts."""
    reasons = [
        ((stack["by"], stack["why"]), host) for host, stacks in found.items() for stack in stacks if stack["why"]
    ]
    for (by, why), hosts in grouped(reasons).items():
        yield f"{fold(hosts)}: by {by} only: {why}"


def _line(frame: Frame) -> str:
    where = short(frame["file"]) + (f":{frame['line']}" if frame["line"] else "")
    return f"{plain_name(frame['name']):<{NAME_WIDTH}} {where}"
