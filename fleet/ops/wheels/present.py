"""The distributions that hosts have, as wheels are resolved and checked against them. They come from peers: names,
versions and requirements are parsed, metadata is written again, and no path or URL in them is used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from fleet.model import grouped
from fleet.ops.wheels.wheel import Wheel

Facts = Mapping[str, Any]
# torch, and what it is built with
HELD = re.compile(r"torch|triton|pytorch-triton.*|(nvidia|cuda)-.+")


@dataclass(frozen=True)
class Distribution:
    """requires: without the URLs that they name."""

    version: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]


Present = Mapping[str, Distribution]


def present(found: Facts) -> dict[str, Distribution]:
    """Returns name -> distribution of one host; what has no valid version is left out."""
    known: dict[str, Distribution] = {}
    for each in found["dists"]:
        with suppress(InvalidVersion):
            requires = tuple(str(need) for need in map(_need, each["requires"]) if need)
            version = str(Version(each["version"]))
            known.setdefault(canonicalize_name(each["name"]), Distribution(version, requires, tuple(each["extras"])))
    return known


@lru_cache(1 << 16)
def _need(text: str) -> Requirement | None:
    """Returns the requirement without its URL, None where it cannot be read: it keeps nothing from working then."""
    try:
        need = Requirement(text)
        need.url = None
        return Requirement(str(need))  # of a marker with two kinds of quotes that is another text
    except (InvalidRequirement, RecursionError):
        return None


def lay(distributions: Present, folder: Path) -> None:
    """Writes the metadata of these distributions into an empty folder, for pip to find them installed."""
    for name, each in distributions.items():
        info = folder / f"{name.replace('-', '_')}-{each.version}.dist-info"
        info.mkdir()
        lines = [f"Name: {name}", f"Version: {each.version}"]
        lines += [f"Provides-Extra: {extra}" for extra in each.extras]
        lines += [f"Requires-Dist: {need}" for need in each.requires]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]), "ascii")


def shared(hosts: Sequence[Present]) -> dict[str, Distribution]:
    """Returns the distributions that all hosts have in one version."""
    return {
        name: each
        for name, each in hosts[0].items()
        if all(name in other and other[name].version == each.version for other in hosts)
    }


def pins(
    hosts: Sequence[Present], wanted: Iterable[Requirement], markers: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns name -> version of torch and CUDA packages as the hosts have them, none if `wanted` pins another version
    of one; and of what only some hosts have, for the others to get the same."""
    versions = grouped((name, each.version) for host in hosts for name, each in host.items())
    one = {name: some[0] for name, some in versions.items() if len({*some}) == 1}
    held = {name: version for name, version in one.items() if HELD.fullmatch(name)}
    for need in wanted:
        version = held.get(canonicalize_name(need.name))
        if version and _applies(need, markers) and (need.url or not _fits(need, version)):
            held = {}  # what torch is built with changes with it
    partial = {name: version for name, version in one.items() if len(versions[name]) < len(hosts)}
    return held, {name: version for name, version in partial.items() if not HELD.fullmatch(name)}


def _applies(need: Requirement, markers: Mapping[str, str]) -> bool:
    return need.marker is None or need.marker.evaluate({**markers, "extra": ""})


def _fits(need: Requirement, version: str | None) -> bool:
    return version is not None and need.specifier.contains(version, prereleases=True)


def breaks(found: Facts, wheels: Sequence[Wheel]) -> list[str]:
    """Returns what `pip check` would report on this host after an install of these wheels and does not before. All
    that a wheel itself lacks is among it."""
    before, new = present(found), {wheel.name: wheel.version for wheel in wheels}
    after = {name: each.version for name, each in before.items()} | new
    requires = {name: each.requires for name, each in before.items()} | {w.name: w.requires for w in wheels}
    needs = ((name, need) for name, texts in requires.items() for need in filter(None, map(_need, texts)))
    wrong = []
    for name, need in needs:
        other = canonicalize_name(need.name)
        was = name not in new and other in new and other in before and _fits(need, before[other].version)
        if (name in new or was) and not _fits(need, after.get(other)) and _applies(need, found["markers"]):
            has = f"{'gets' if other in new else 'has'} {after[other]}" if other in after else "absent"
            wrong.append(f"{name} needs {need.name}{need.specifier} ({has})")
    return wrong


def replaced(found: Facts, wheels: Sequence[Wheel]) -> dict[str, str]:
    """Returns name -> "1.0 by 2.0" of the distributions of which this host has another version."""
    before = present(found)
    return {
        wheel.name: f"{before[wheel.name].version} by {wheel.version}"
        for wheel in wheels
        if wheel.name in before and Version(before[wheel.name].version) != Version(wheel.version)
    }
