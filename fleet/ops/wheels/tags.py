"""Decides whether the nodes' interpreters are alike, and which wheels all of them accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from fleet.errors import PreflightError, UsageError
from fleet.inventory.nodeset import fold
from fleet.model import grouped
from fleet.ops.wheels.present import Facts
from fleet.ops.wheels.wheel import Wheel
from fleet.rules.judge import groups


def kind_of(facts: Facts) -> str:
    """Returns the kind of an interpreter, which must be equal on all hosts: "cpython 3.11
    (cpython-311-x86_64-linux-gnu)".
    """
    minor = ".".join(facts["version"].split(".")[:2])
    return f"{facts['implementation']} {minor} ({facts['soabi'] or facts['platform']})"


def agree(facts: Mapping[str, Facts]) -> None:
    """Raises PreflightError, with the hosts of each kind, if the interpreters are not all of one kind."""
    kinds = groups({host: kind_of(found) for host, found in facts.items()})
    if len(kinds) > 1:
        text = "; ".join(f"{kind} on {fold(hosts)}" for kind, hosts in kinds)
        raise PreflightError(
            f"the hosts' Pythons differ: {text}",
            kind="python",
            hint="nothing was sent; set 'python' in the inventory, or select equal hosts with -w",
        )


def common_tags(facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """Returns the tags that every node's pip accepts, best first. The oldest glibc of all nodes limits them."""
    all_facts = list(facts.values())
    shared = set.intersection(*(set(f["tags"]) for f in all_facts))
    return tuple(tag for tag in all_facts[0]["tags"] if tag in shared)


def choose(wheels: Sequence[Wheel], facts: Mapping[str, Facts]) -> tuple[Wheel, ...]:
    """Returns one wheel for each distribution: the best one that all nodes accept. Raises UsageError if there are two
    versions of one distribution. Raises PreflightError for wheels that some node does not accept."""
    ranks = {tag: number for number, tag in enumerate(common_tags(facts))}
    chosen: list[Wheel] = []
    refused: list[str] = []
    for name, group in grouped((wheel.name, wheel) for wheel in wheels).items():
        fitting = [w for w in group if w.tags & ranks.keys() and not _too_young(w, facts)]
        versions = sorted({w.version for w in fitting or group}, key=Version)
        if len(versions) > 1:
            raise UsageError(f"several versions of {name}: {', '.join(versions)}", hint="leave one of them there")
        if fitting:
            newest = sorted(fitting, key=lambda w: w.build or (0, ""), reverse=True)
            chosen.append(min(newest, key=lambda w: min(ranks[tag] for tag in w.tags & ranks.keys())))
        else:
            refused += [_refusal(w, facts) for w in group]
    if refused:
        raise PreflightError(
            "; ".join(refused),
            kind="tags",
            hint="nothing was sent; 'fleet sync --wheels FILE' of requirements collects wheels for the hosts' Python, "
            "'fleet build PATH' builds one there",
        )
    return tuple(chosen)


def _too_young(wheel: Wheel, facts: Mapping[str, Facts]) -> list[str]:
    """Returns the hosts whose Python does not fit the wheel's Requires-Python."""
    try:
        wanted = SpecifierSet(wheel.requires_python)
    except InvalidSpecifier:
        return []  # pip ignores an invalid specifier, too
    return [host for host, found in facts.items() if not wanted.contains(found["version"], prereleases=True)]


def _refusal(wheel: Wheel, facts: Mapping[str, Facts]) -> str:
    against = [host for host, found in facts.items() if not wheel.tags & set(found["tags"])] or list(facts)
    young = _too_young(wheel, facts)
    if young and wheel.tags & set(facts[young[0]]["tags"]):
        return (
            f"{wheel.path.name} wants Python {wheel.requires_python}, {fold(young)} "
            f"{'have' if len(young) > 1 else 'has'} {facts[young[0]]['version']}"
        )
    found = facts[against[0]]
    takes = f"{found['tags'][0]} and what is older" if found["tags"] else "nothing"
    python = f"Python {found['version']} there, pip {found['pip']} takes {takes}"
    return f"{wheel.path.name} does not fit {fold(against)}: {python}"
