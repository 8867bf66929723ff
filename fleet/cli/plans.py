"""What --dry-run tells: a plan as JSON, or as text on stdout, hosts of which the same is said together, long lists cut
where -v does not ask for all."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fleet.cli.options import settings_of
from fleet.cli.output import clean, echo, fold, write_plan
from fleet.ops.plans import Files, Line, PerHost, Plan, around
from fleet.rules.units import counted, size_text

MANY = 20


def tell(verb: str, plan: Plan, **more: Any) -> int:
    """A plan; --dry-run's exit code."""
    return write(verb, [host.name for host in plan.hosts], plan.describe(), plan.lines, **more)


def write(verb: str, names: Iterable[str], plan: Any, lines: Callable[[], Iterable[Line]], **more: Any) -> int:
    """The JSON document with --json, else the lines."""
    if settings_of().json:
        write_plan(verb, names, plan, **more)
    else:
        for line in lines():
            for text in _texts(line):
                echo(clean(text))
    return 0


def _texts(line: Line) -> Iterator[str]:
    if isinstance(line, PerHost):
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, lines in line.said.items():
            groups.setdefault(tuple(lines), []).append(name)
        for (first, *others), names in groups.items():
            yield f"{fold(names)}: {first}"
            yield from (f"  {other}" for other in others)
    elif isinstance(line, Files):
        count = len(line.sizes)
        shown = count if settings_of().verbose or count <= MANY + 1 else MANY
        yield from (f"  {size_text(size):>10}  {path}" for path, size in line.sizes[:shown])
        if shown < count:
            yield f"  and {count - shown} more; -v shows all"
    else:
        yield line


def launching(plan: Mapping[str, Any]) -> Iterator[Line]:
    """fleet launch: of what the hosts are given one by one, each its own, the rest is told once."""
    yield (
        f"run {plan['run']}: {counted(plan['world_size'], 'rank')}, engine {plan['engine']}, "
        f"master {plan['master']}, logs in {plan['logs']}"
    )
    nodes: Mapping[str, Mapping[str, Any]] = plan["hosts"]
    for name, node in nodes.items():
        ranks = node["ranks"]
        span = f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
        yield f"{name}: node rank {node['node_rank']}, {span}, in {node['workdir']}"
    own = None if settings_of().verbose or len(nodes) < 2 else _own_word(list(nodes.values()))
    said = {}
    for name, node in nodes.items():
        argv = list(node["argv"])
        if own is not None:
            argv[own] = argv[own].removesuffix(str(node["node_rank"])) + "NODE_RANK"
        said[name] = [
            "starts",
            f"engine: {shlex.join(argv)}",
            f"each rank: {shlex.join(node['command'])}",
            *around(node),
        ]
    yield PerHost(said)


def _own_word(nodes: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the word in which the engines' commands have nothing but the node rank that is their own."""
    for place, words in enumerate(zip(*(node["argv"] for node in nodes), strict=False)):
        ranks = [str(node["node_rank"]) for node in nodes]
        stems = {word.removesuffix(rank) for word, rank in zip(words, ranks, strict=True)}
        if len(set(words)) > 1 and len(stems) == 1:
            return place
    return None
