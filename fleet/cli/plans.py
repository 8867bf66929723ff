"""What --dry-run tells people: plans as text on stdout, hosts of which the same is said together, long lists cut where
-v does not ask for all. The same plans as JSON are the ops' own `describe()`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fleet.cli.options import settings_of
from fleet.cli.output import clean, echo, fold, size_text, write_plan
from fleet.rules.units import counted

if TYPE_CHECKING:
    from fleet.ops.broadcast.planning import BroadcastPlan
    from fleet.ops.sync.code import SyncPlan
    from fleet.ops.wheels import WheelsPlan

MANY = 20


def tell(verb: str, names: Iterable[str], plan: Any, lines: Callable[[], Iterable[str]], **more: Any) -> int:
    """The JSON document with --json, else the lines; --dry-run's exit code."""
    if settings_of().json:
        write_plan(verb, names, plan, **more)
    else:
        for line in lines():
            echo(clean(line))
    return 0


def alike(said: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """host -> lines: "gpu[01-04]: the first", the others indented below it."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, lines in said.items():
        groups.setdefault(tuple(lines), []).append(name)
    for (first, *others), names in groups.items():
        yield f"{fold(names)}: {first}"
        yield from (f"  {line}" for line in others)


def bounded(lines: Sequence[str]) -> Iterator[str]:
    """The first of many."""
    shown = lines if settings_of().verbose or len(lines) <= MANY + 1 else lines[:MANY]
    yield from (f"  {line}" for line in shown)
    if len(shown) < len(lines):
        yield f"  and {len(lines) - len(shown)} more; -v shows all"


def files(sizes: Sequence[tuple[str, int]]) -> Iterator[str]:
    yield from bounded([f"{size_text(size):>10}  {path}" for path, size in sizes])


def execution(plan: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """fleet exec"""
    yield from alike(
        {
            name: [
                f"would run {shlex.join(spec['argv'])}"
                if "argv" in spec
                else f"would run, in its shell: {spec['line']}",
                *_around(spec),
            ]
            for name, spec in plan.items()
        }
    )


def _around(spec: Mapping[str, Any]) -> list[str]:
    return [
        *([f"behind: {spec['activate']}"] if spec.get("activate") else []),
        *([f"env: {', '.join(spec['env'])}"] if spec.get("env") else []),
    ]


def launching(plan: Mapping[str, Any]) -> Iterator[str]:
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
            *_around(node),
        ]
    yield from alike(said)


def _own_word(nodes: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the word in which the engines' commands have nothing but the node rank that is their own."""
    for place, words in enumerate(zip(*(node["argv"] for node in nodes), strict=False)):
        ranks = [str(node["node_rank"]) for node in nodes]
        stems = {word.removesuffix(rank) for word, rank in zip(words, ranks, strict=True)}
        if len(set(words)) > 1 and len(stems) == 1:
            return place
    return None


def checking(plan: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """fleet check"""
    yield "would ask for the facts of system, Python, torch, compilers, GPUs, network, clock and disks; changes nothing"
    yield from alike(
        {
            name: [
                f"training interpreter {spec['python'] or 'python3'}",
                *([f"workdir {spec['workdir']}"] if spec.get("workdir") else []),
                *_around(spec),
            ]
            for name, spec in plan.items()
        }
    )


def code(plan: SyncPlan) -> Iterator[str]:
    """fleet sync: what is deleted is known to the hosts alone."""
    from fleet.ops.sync.tree import scan

    tree = scan(plan.source, whole=plan.whole)
    sizes = [(path, entry[3]) for path, entry in tree.by_path.items()]
    yield f"code: {tree.root}, {_amount(sizes)}; would be sent as far as a host does not have it:"
    yield from files(sizes)
    yield from alike({name: [f"into {dest}"] for name, dest in plan.dests.items()})
    yield "deleted there: what an earlier sync brought and is gone here, nothing else"


def data(plan: BroadcastPlan) -> Iterator[str]:
    """fleet sync --data"""
    from fleet.ops.broadcast.manifest import scan

    manifest = scan([item.source for item in plan.items])
    for number, item in enumerate(plan.items):
        sizes = [(entry[1] or item.source.name, entry[4]) for entry in manifest.files if entry[0] == number]
        yield f"data: {item.source}, {_amount(sizes)}; would be sent as far as a host does not have it:"
        yield from files(sizes)
        yield from alike({name: [f"to {dest}"] for name, dest in item.dests.items()})
    limit = f", at most {size_text(plan.limit)}/s" if plan.limit else ""
    yield f"by {'a chain of the hosts' if plan.via == 'chain' else 'rsync, from here to each'}{limit}; deletes nothing"


def wheels(plan: WheelsPlan) -> Iterator[str]:
    """fleet sync --wheels"""
    if plan.kind == "folder":
        sizes = [(path.name, path.stat().st_size) for path in sorted(plan.source.glob("*.whl"))]
        yield f"wheels: {plan.source}, {_amount(sizes)}; would be installed where they are not:"
        yield from files(sizes)
    else:
        yield f"wheels: what {plan.source} asks for, for the hosts' Python; would be installed where it is not"
    yield from alike({name: [f"in {python or 'python3'}"] for name, python in plan.pythons.items()})


def _amount(sizes: Sequence[tuple[str, int]]) -> str:
    return f"{len(sizes)} file{'' if len(sizes) == 1 else 's'}, {size_text(sum(size for _, size in sizes))}"


def setting_up(plan: Mapping[str, Any]) -> Iterator[str]:
    """fleet setup-ssh"""
    yield from (f"this machine: key {path}: {what}" for path, what in plan["head"]["keys"].items())
    yield f"this machine: {plan['head']['config']}"
    for name, said in plan["hosts"].items():
        yield f"{name}: {', via '.join([said['target'], *said['via']])}, host key: {said['host_key']}"
    yield from alike({name: said["steps"] for name, said in plan["hosts"].items()})
    yield f"would verify {plan['verify']}"


def undoing(plan: Mapping[str, Any]) -> Iterator[str]:
    """fleet setup-ssh --undo"""
    yield from alike(
        {
            name: list(_taken(said)) or ["nothing on record"]
            for name, said in {"this machine": plan["head"], **plan["hosts"]}.items()
        }
    )


def _taken(said: Mapping[str, Any]) -> Iterator[str]:
    yield from (
        f"would take {count} line{'' if count == 1 else 's'} out of {name}" for name, count in said["lines"].items()
    )
    yield from (f"would remove key {key}" for key in said["keys"])


def building(plan: Mapping[str, Any], install: bool) -> Iterator[str]:
    """fleet build"""
    yield f"would build {plan['what']} on {plan['on']}, from {plan['source']}"
    arch = plan["arch"]
    yield f"  for {'the GPUs that all hosts have' if arch == 'auto' else arch if arch == 'cpu' else ', '.join(arch)}"
    if plan["ops"]:
        yield f"  ops: {', '.join(plan['ops'])}"
    env = "".join(f"{name}={shlex.quote(value)} " for name, value in plan["env"].items())
    yield f"  {env}{shlex.join(plan['argv'])}"
    yield "and install it on every host" if install else "and install it nowhere"
