"""Reads the distributions that hosts report, so that wheels can be resolved and checked against them. Nodes are not
trusted: names, versions and requirements are parsed, metadata is written again, and no path or URL in them is used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from fleet.model import grouped
from fleet.ops.wheels.wheel import Wheel
from fleet.protocol.messages.wheels import Dist

Facts = Mapping[str, Any]
# torch, and the packages that it is built with
HELD = re.compile(r"torch|triton|pytorch-triton.*|(nvidia|cuda)-.+")
Present = Mapping[str, Dist]
Environment = tuple[tuple[str, str], ...]


def present(found: Facts) -> dict[str, Dist]:
    """Returns name -> distribution of one host. Leaves out distributions without a valid version."""
    known: dict[str, Dist] = {}
    dists: list[Dist] = found["dists"]
    for each in dists:
        with suppress(InvalidVersion):
            requires = [str(need) for need, _applies in _needs(each["requires"], found["markers"])]
            dist: Dist = {**each, "version": str(Version(each["version"])), "requires": requires}
            known.setdefault(canonicalize_name(each["name"]), dist)
    return known


def _needs(texts: Iterable[str], markers: Mapping[str, str]) -> Iterable[tuple[Requirement, bool]]:
    """Returns each valid requirement, and whether it applies to hosts with these markers."""
    environment = (*markers.items(),)
    return filter(None, (_need(text, environment) for text in texts))


@lru_cache(1 << 16)
def _need(text: str, environment: Environment) -> tuple[Requirement, bool] | None:
    try:
        need = Requirement(text)
        need.url = None
        need = Requirement(str(need))  # parsed again, because str() changes a marker that has two kinds of quotes
        return need, need.marker is None or need.marker.evaluate({**dict(environment), "extra": ""})
    except (ValueError, RecursionError):
        return None


def write_metadata(distributions: Present, folder: Path) -> None:
    """Writes the metadata of these distributions into an empty folder, so that pip takes them for installed."""
    for name, each in distributions.items():
        info = folder / f"{name.replace('-', '_')}-{each['version']}.dist-info"
        info.mkdir()
        lines = [f"Name: {name}", f"Version: {each['version']}"]
        lines += [f"Provides-Extra: {extra}" for extra in each["extras"]]
        lines += [f"Requires-Dist: {need}" for need in each["requires"]]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]), "ascii")


def shared(hosts: Sequence[Present]) -> dict[str, Dist]:
    """Returns the distributions that all hosts have in one version."""
    return {
        name: each
        for name, each in hosts[0].items()
        if all(name in other and other[name]["version"] == each["version"] for other in hosts)
    }


def pins(
    hosts: Sequence[Present], wanted: Iterable[str], markers: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns two dicts, name -> version. The first has the torch and CUDA packages of the hosts. It is empty if
    `wanted` pins another version of one of them. The second has the packages that only some hosts have, so that the
    other hosts get the same version. markers: values for requirements' markers."""
    versions = grouped((name, each["version"]) for host in hosts for name, each in host.items())
    one = {name: some[0] for name, some in versions.items() if len({*some}) == 1}
    held = {name: version for name, version in one.items() if HELD.fullmatch(name)}
    for text in wanted:
        for need, applies in _needs([text], markers):
            version = held.get(canonicalize_name(need.name))
            if version and applies and (" @ " in text or not _fits(need, version)):
                held = {}  # the packages that torch is built with change, too
    partial = {name: version for name, version in one.items() if len(versions[name]) < len(hosts)}
    return held, {name: version for name, version in partial.items() if not HELD.fullmatch(name)}


def _fits(need: Requirement, version: str | None) -> bool:
    return version is not None and need.specifier.contains(version, prereleases=True)


def breaks(found: Facts, wheels: Sequence[Wheel]) -> list[str]:
    """Returns the new faults that `pip check` would report on this host after an install of these wheels. They include
    all unmet requirements of the wheels themselves."""
    before, new = present(found), {wheel.name: wheel.version for wheel in wheels}
    after = {name: each["version"] for name, each in before.items()} | new
    requires = {name: each["requires"] for name, each in before.items()} | {w.name: w.requires for w in wheels}
    wrong = []
    for name, need, applies in (
        (n, *each) for n, texts in requires.items() for each in _needs(texts, found["markers"])
    ):
        other = canonicalize_name(need.name)
        was = name not in new and other in new and other in before and _fits(need, before[other]["version"])
        if (name in new or was) and applies and not _fits(need, after.get(other)):
            has = f"{'gets' if other in new else 'has'} {after[other]}" if other in after else "absent"
            wrong.append(f"{name} needs {need.name}{need.specifier} ({has})")
    return wrong


def replaced(found: Facts, wheels: Sequence[Wheel]) -> dict[str, str]:
    """Returns name -> "1.0 by 2.0" for the wheels of which this host has another version."""
    before = present(found)
    return {
        wheel.name: f"{before[wheel.name]['version']} by {wheel.version}"
        for wheel in wheels
        if wheel.name in before and Version(before[wheel.name]["version"]) != Version(wheel.version)
    }
