"""Before anything is compiled: for which GPUs, and whether the node's compilers can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.errors import PreflightError, UsageError
from fleet.inventory.nodeset import fold
from fleet.rules.compilers import ARCH, FIRST_CUDA, LAST_CUDA, another_gcc, capability, gcc_bounds, numbers

Facts = Mapping[str, Any]
Wrong = Iterator[tuple[str, str]]  # what is wrong, and what mends it


def given_arch(text: str) -> tuple[str, ...]:
    """--arch "8.0;9.0" (or with commas, or spaces); () for auto."""
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
    """The compute capabilities of all GPUs of all hosts, ascending; () when there are none anywhere. PreflightError
    for a GPU that neither its driver nor the table knows, and for GPUs that cannot be asked."""
    found: set[str] = set()
    unknown: dict[str, list[str]] = {}
    for host, known in facts.items():
        if known.get("gpu_error") or "gpus" not in known:
            why = known.get("gpu_error") or "nvidia-smi gave no answer"
            raise PreflightError(
                f"its GPUs cannot be asked: {why}",
                host=host,
                kind="gpus",
                hint='mend it, leave the host out with -x, or say --arch "8.0;9.0"',
            )
        for gpu in known["gpus"]:
            value = gpu.get("capability") or capability(gpu["name"])
            if value is None:
                unknown.setdefault(gpu["name"], []).append(host)
            else:
                found.add(value)
    if unknown:
        said = "; ".join(f"{name} on {fold(hosts)}" for name, hosts in unknown.items())
        raise PreflightError(
            f"compute capability not known: {said}",
            kind="gpus",
            hint='say it: --arch "8.0;9.0" (https://developer.nvidia.com/cuda-gpus)',
        )
    return tuple(sorted(found, key=lambda a: tuple(map(int, a.split(".")))))


def older_glibc(facts: Mapping[str, Facts], builder: str) -> str | None:
    """A warning when some host's C library is older than the builder's: what is compiled there may not load here."""
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
    """Everything that keeps this node from building for these GPUs; [] when nothing is known to."""
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
        yield from _cuda(arch, torch, nvcc)
    yield from _gcc(facts, torch, nvcc["version"] if nvcc and arch else None)


def _cuda(arch: tuple[str, ...], torch: Facts, nvcc: Facts | None) -> Wrong:
    built = numbers(torch.get("cuda"))
    if torch and built is None and not torch.get("hip"):
        yield (
            f"torch {torch['version']} there is built without CUDA, which GPUs ({';'.join(arch)}) need",
            "install a CUDA build of torch there; --cpu builds only for the CPU",
        )
        return
    if nvcc is None:
        wanted = f" {torch['cuda']}" if torch.get("cuda") else ""
        yield (
            "no nvcc there",
            f"install the CUDA toolkit{wanted}, set CUDA_HOME in 'env', choose another host with "
            "--on, or build only for the CPU with --cpu",
        )
        return
    version = numbers(nvcc["version"])
    if version is None:
        return
    if built and built[0] != version[0]:
        yield (
            f"nvcc is {nvcc['version']}, torch is built with CUDA {torch['cuda']}",
            f"point CUDA_HOME in 'env' at a toolkit {built[0]}.x: ops and torch must share the major version",
        )
    for one in arch:
        plain = one.split("+")[0].rstrip("af")
        if version < FIRST_CUDA.get(plain, (0, 0)):
            first = ".".join(map(str, FIRST_CUDA[plain]))
            yield (
                f"nvcc {nvcc['version']} does not know compute capability {one}",
                f"CUDA {first} is the first that does: point CUDA_HOME at one, or narrow --arch or -w",
            )
        last = LAST_CUDA.get(plain)
        if last and version > last:
            yield (
                f"nvcc {nvcc['version']} no longer compiles for compute capability {one}",
                f"CUDA {'.'.join(map(str, last))} is the last that does: point CUDA_HOME at one, or narrow --arch "
                "or -w",
            )


def _gcc(facts: Facts, torch: Facts, cuda: str | None) -> Wrong:
    for key, name, package in (("cc", "gcc", "gcc"), ("cxx", "g++", "g++")):
        found = facts.get(key)
        if found is None:
            yield (
                f"no {name} there",
                f"apt-get install {package}, yum install {package.replace('g++', 'gcc-c++')}; "
                "or name one in 'activate' or in CC and CXX",
            )
            continue
        version = numbers(found["version"])
        oldest, newest = gcc_bounds(torch.get("version"), cuda)
        if version is None:
            continue
        if newest is not None and version[0] > newest:
            yield (
                f"{name} {found['version']} is too new for nvcc {cuda}, which takes up to {newest}",
                another_gcc(newest),
            )
        elif oldest is not None and version[0] < oldest:
            yield (
                f"{name} {found['version']} is too old for torch {torch['version']}, which wants {oldest} or newer",
                another_gcc(min(oldest + 2, newest or oldest + 2)),
            )
