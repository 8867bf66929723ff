"""Decides for which GPUs a wheel is built, and checks the node's compilers before they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.errors import PreflightError, UsageError
from fleet.inventory.nodeset import fold
from fleet.rules.compilers import ARCH, Wrong, capability, numbers, wrong_compilers, wrong_toolkit

Facts = Mapping[str, Any]


def given_arch(text: str) -> tuple[str, ...]:
    """Returns the compute capabilities in the value of --arch, "8.0;9.0" (or with commas or spaces), or () for "auto".
    Raises UsageError for other text."""
    if text == "auto":
        return ()
    parts = tuple(part for part in text.replace(";", " ").replace(",", " ").split())
    for part in parts:
        if not ARCH.fullmatch(part):
            raise UsageError(f"--arch: '{part}' is no compute capability", hint='write "8.0;9.0", or auto')
    if not parts:
        raise UsageError("--arch is empty", hint='write "8.0;9.0", or auto')
    return parts


def fleet_arch(facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """Returns the compute capabilities of all GPUs of all hosts, in ascending order, or () if there are no GPUs. Raises
    PreflightError for an unknown GPU, and for GPUs that cannot be queried."""
    found: set[str] = set()
    unknown: dict[str, list[str]] = {}
    for host, known in facts.items():
        if known.get("gpu_error") or "gpus" not in known:
            why = known.get("gpu_error") or "nvidia-smi gave no answer"
            raise PreflightError(
                f"its GPUs cannot be queried: {why}",
                host=host,
                kind="gpus",
                hint='mend it, leave the host out with -x, or say --arch "8.0;9.0"',
            )
        for gpu in known["gpus"]:
            name = gpu["name"] or "a GPU without a name"
            value = gpu.get("capability") or capability(name)
            if value is None:
                unknown.setdefault(name, []).append(host)
            else:
                found.add(value)
    if unknown:
        text = "; ".join(f"{name} on {fold(hosts)}" for name, hosts in unknown.items())
        raise PreflightError(
            f"compute capability not known: {text}",
            kind="gpus",
            hint='say it: --arch "8.0;9.0" (https://developer.nvidia.com/cuda-gpus)',
        )
    return tuple(sorted(found, key=lambda a: tuple(map(int, a.split(".")))))


def older_glibc(facts: Mapping[str, Facts], builder: str) -> str | None:
    """Returns a warning if a host's C library is older than the builder's, because the wheel may not load on that host.
    Returns None otherwise."""
    versions = {host: numbers(known.get("glibc")) for host, known in facts.items()}
    own = versions[builder]
    older = [host for host, version in versions.items() if own and version and version < own]
    if not older:
        return None
    oldest = min(older, key=lambda host: versions[host] or (0, 0))
    return (
        f"glibc {facts[builder]['glibc']} on {builder} is newer than on {fold(older)}: what is built may not load "
        f"there; --on {oldest} builds for all"
    )


def toolchain(facts: Facts, arch: tuple[str, ...], *, needs_torch: bool) -> list[PreflightError]:
    """Returns the errors that keep this node from building for these GPUs."""
    found = _wrong(facts, arch, needs_torch)
    return [PreflightError(message, hint=hint, kind="toolchain") for message, hint in found]


def _wrong(facts: Facts, arch: tuple[str, ...], needs_torch: bool) -> Wrong:
    python = facts.get("python") or {}
    if facts.get("activate"):
        yield (f"the activate line failed: {facts['activate']}", "run it by hand there: ssh HOST, then bash")
    if python.get("error") or not python:
        yield (python.get("error") or "its Python gave no answer", "correct 'python' of this host in the inventory")
        return
    missing = [name for name, there in (facts.get("backends") or {}).items() if not there]
    if missing:
        how = "" if missing == ["wheel"] else f"{python['executable']} -m ensurepip; or "
        yield (
            f"{python['executable']} lacks {' and '.join(missing)}, which build wheels",
            f"{how}sync their wheels: fleet sync --wheels DIR",
        )
    if not facts.get("headers"):
        yield (
            f"the headers of {python['executable']} are missing (Python.h)",
            "apt-get install python3-dev (python3.X-dev), yum install python3-devel; conda has them",
        )
    torch = facts.get("torch") or {}
    if needs_torch and not torch:
        yield (
            f"torch is not in {python['executable']}",
            "'fleet sync --wheels FOLDER', with it in there; or set 'python'",
        )
    nvcc = facts.get("nvcc")
    if arch:
        yield from wrong_toolkit(arch, torch, nvcc)
    yield from wrong_compilers(facts, torch, nvcc["version"] if nvcc and arch else None)
