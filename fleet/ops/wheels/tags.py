"""Whether the nodes' interpreters are alike, and which wheels they all take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from fleet.errors import PreflightError, UsageError
from fleet.inventory.nodeset import fold
from fleet.ops.wheels.wheel import Wheel

Facts = Mapping[str, Any]


def kind_of(facts: Facts) -> str:
    """What must be the same everywhere: "cpython 3.11 (cpython-311-x86_64-linux-gnu)"."""
    minor = ".".join(facts["version"].split(".")[:2])
    return f"{facts['implementation']} {minor} ({facts['soabi'] or facts['platform']})"


def agree(facts: Mapping[str, Facts]) -> None:
    """PreflightError naming who has what, unless all interpreters are of one kind."""
    kinds: dict[str, list[str]] = {}
    for host, found in facts.items():
        kinds.setdefault(kind_of(found), []).append(host)
    if len(kinds) > 1:
        said = "; ".join(f"{kind} on {fold(hosts)}" for kind, hosts in sorted(kinds.items(), key=lambda k: -len(k[1])))
        raise PreflightError(
            f"the hosts' Pythons differ: {said}",
            kind="python",
            hint="nothing was sent; set 'python' in the inventory, or select equal hosts with -w",
        )


def common_tags(facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """The tags that every node's pip takes, best first: the oldest glibc among them decides."""
    everyone = list(facts.values())
    shared = set.intersection(*(set(f["tags"]) for f in everyone))
    return tuple(tag for tag in everyone[0]["tags"] if tag in shared)


def choose(wheels: Sequence[Wheel], facts: Mapping[str, Facts]) -> tuple[Wheel, ...]:
    """One wheel for each distribution, the best that all nodes take. UsageError where two versions of one are given,
    PreflightError naming every wheel that some node refuses, and what that node supports."""
    ranks = {tag: number for number, tag in enumerate(common_tags(facts))}
    chosen: list[Wheel] = []
    refused: list[str] = []
    named: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        named.setdefault(wheel.name, []).append(wheel)
    for name, group in named.items():
        fitting = [w for w in group if w.tags & ranks.keys() and not _too_young(w, facts)]
        versions = sorted({w.version for w in fitting or group}, key=Version)
        if len(versions) > 1:
            raise UsageError(f"several versions of {name}: {', '.join(versions)}", hint="leave one of them there")
        if fitting:
            best = min(fitting, key=lambda w: (min(ranks[t] for t in w.tags & ranks.keys()), _newest_build(w)))
            chosen.append(best)
        else:
            refused += [_refusal(w, facts) for w in group]
    if refused:
        raise PreflightError(
            "; ".join(refused),
            kind="tags",
            hint="nothing was sent; collect wheels for the hosts' Python: fleet sync --wheels "
            "requirements.txt, or build them there: fleet build PATH",
        )
    return tuple(chosen)


def _newest_build(wheel: Wheel) -> tuple[int, str]:
    number, text = wheel.build or (0, "")
    return -number, text


def _too_young(wheel: Wheel, facts: Mapping[str, Facts]) -> list[str]:
    """The hosts whose Python its Requires-Python leaves out."""
    try:
        wanted = SpecifierSet(wheel.requires_python)
    except InvalidSpecifier:
        return []  # pip disregards it as well
    return [host for host, found in facts.items() if not wanted.contains(found["version"], prereleases=True)]


def _refusal(wheel: Wheel, facts: Mapping[str, Facts]) -> str:
    against = [host for host, found in facts.items() if not wheel.tags & set(found["tags"])] or list(facts)
    young = _too_young(wheel, facts)
    if young and wheel.tags & set(facts[young[0]]["tags"]):
        return (
            f"{wheel.path.name} wants Python {wheel.requires_python}, {fold(young)} "
            f"{'have' if len(young) > 1 else 'has'} {facts[young[0]]['version']}"
        )
    supports = facts[against[0]]["tags"]
    return (
        f"{wheel.path.name} does not fit {fold(against)}: Python {facts[against[0]]['version']} there, pip "
        f"{facts[against[0]]['pip']} takes {_short(supports)}"
    )


def _short(tags: Iterable[str]) -> str:
    """The best tag and the plainest, as a reader compares them: "cp311-cp311-manylinux_2_36_x86_64 and older"."""
    first = next(iter(tags), None)
    return f"{first} and what is older" if first else "nothing"
