"""Resolves requirements with pip on the head, for the hosts' Python and their installed packages. Downloads the wheels
that the hosts lack."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.errors import FleetError, HostFailed, UsageError
from fleet.events import Notice, Round
from fleet.ops.cache import cache, fresh, turn
from fleet.ops.wheels.pip import REFUSED, run_pip
from fleet.ops.wheels.present import pins, present, shared, write_metadata
from fleet.ops.wheels.requirements import BUILD, NO_WHEEL, Requirements
from fleet.ops.wheels.tags import common_tags
from fleet.ops.wheels.wheel import Wheel, digest_of, read_folder
from fleet.runtime import Runtime

DONE = ".complete"
# pip's output if an index does not answer, or something other than an index answers
_UNREACHED = re.compile(
    r"Failed to establish a new connection.*|Temporary failure in name resolution.*|NameResolutionError.*|"
    r"Cannot connect to proxy.*|Connect(?:ion|Timeout)Error.*|SSLError.*|Read timed out.*|"
    r"(?:401|403|407|50\d) (?:Client|Server) Error.*"
)


def collect(
    requirements: Path, facts: Mapping[str, Mapping[str, Any]], runtime: Runtime, *, refresh: bool = False
) -> tuple[Wheel, ...]:
    """Returns the wheels of the requirements that some of these hosts lack. A later call finds these wheels in the
    cache. refresh: resolves again. Raises HostFailed with pip's reason if a package is not available as a wheel."""
    requested = Requirements(requirements)
    if not requested.text():
        raise UsageError(f"{requirements} asks for nothing", hint="name packages there, one on a line")
    hosts = [present(found) for found in facts.values()]
    oldest = min(facts.values(), key=lambda found: [*map(int, found["version"].split("."))])
    held, partial = pins(hosts, requested.wanted(), oldest["markers"])
    installed = shared(hosts)
    spec = {"markers": oldest["markers"], "tags": common_tags(facts)}
    digests = [digest_of(path, runtime.cancel.is_set) for path in requested.wheels]
    parts = [requested.text(), requested.constraints(), digests, held, partial, str(sorted(installed.items())), spec]
    key = f"got-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"
    folder = cache() / "wheels" / key
    with turn(key, "another download for these requirements", runtime):
        if (folder / DONE).exists() and not refresh:
            age = time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / DONE).stat().st_mtime))
            runtime.emit(Notice("info", f"wheels as resolved on {age}; --refresh resolves again"))
        else:
            runtime.emit(Round("collecting wheels with pip", ()))
            with fresh(folder.with_name(f"{key}.new")) as work:
                (work / "site").mkdir()
                write_metadata(installed, work / "site")
                spec |= {"site": str(work / "site"), "version": oldest["version"]}
                out = _download(requested, held | partial, spec, work, runtime)
                if out is not None and partial:
                    out = _download(requested, held, spec, work, runtime)
                if out is not None:
                    raise _failure(out, held)
                (work / "got" / DONE).touch()
                shutil.rmtree(folder, ignore_errors=True)
                (work / "got").rename(folder)
    return read_folder(folder, runtime.cancel.is_set) if any(folder.glob("*.whl")) else ()


def _download(
    requested: Requirements, kept: Mapping[str, str], spec: Mapping[str, Any], work: Path, runtime: Runtime
) -> str | None:
    """Runs `pip download` in a folder of its own, in which no file has a requirement's name. Returns pip's output if
    pip failed, or else None."""
    kept_lines = "".join(f"{name}=={version}\n" for name, version in kept.items())
    (work / "requirements").write_text(requested.text(), "ascii")
    (work / "constraints").write_text(requested.constraints() + kept_lines, "ascii")
    shutil.rmtree(work / "got", ignore_errors=True)
    (work / "got").mkdir()
    command = "download --progress-bar off --only-binary=:all: -d got -r requirements -c constraints --python-version"
    return run_pip([*command.split(), spec["version"]], work, runtime, hosts=spec)


def _failure(out: str, held: Mapping[str, str]) -> FleetError:
    """Returns the error for pip's output."""
    if REFUSED in out:
        began = re.findall(r"(?m)^ *(?:Collecting|Processing) (.+)", out) or ["something that a wheel depends on"]
        return UsageError(f"{began[-1].strip()} {NO_WHEEL}", hint=BUILD)
    if changed := re.search(r"(?m)^ +(\S.*):\n((?: +Expected .+\n)+) +Got +(\w+)", out):
        what, expected, got = changed.groups()
        wanted = " or ".join(re.findall(r"\w{32,}", expected))
        return HostFailed(f"{what}: expected {wanted}, got {got}: it was tampered with, or uploaded again", kind="hash")
    errors = re.findall(r"(?m)^ERROR: (?!Exception:)(.+)|: error: (.+)", out)
    text = "".join(errors[-1]) if errors else (out.strip().splitlines() or ["pip failed"])[-1]
    if unreached := _UNREACHED.search(out):
        text = f"pip does not reach its package index: {unreached[0].strip()[:300]}"
        hint = (
            "'pip config list' shows which it asks, PIP_INDEX_URL names another, HTTPS_PROXY a way there; or give "
            "a folder of wheels: 'fleet sync --wheels DIR'"
        )
    elif why := re.search(r"(?m)^The conflict is caused by:\n((?: {4}.+\n)+)", out):
        text = f"pip: {'; '.join(map(str.strip, why[1].splitlines()))}"
        keeps = f"; the hosts keep torch {held.get('torch')} unless the file pins another: torch==VERSION"
        hint = "loosen one of them" + keeps * ("torch" in held)
    elif "No matching distribution" in out:
        text = f"pip download: {text}"
        hint = (
            "no wheel of it fits the hosts' Python: build one there with 'fleet build PATH', or give "
            "pip an index that has it (PIP_EXTRA_INDEX_URL)"
        )
    else:
        text, hint = f"pip download: {text}", "by hand, 'pip download -d DIR -r FILE' shows all that it prints"
    return HostFailed(text, kind="collect", hint=hint)
