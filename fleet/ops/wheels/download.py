"""Downloads, with pip on the head and once, the wheels of requirements for the nodes' Python."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.errors import HostFailed, UsageError
from fleet.events import Notice, Round
from fleet.node.base.files import file_digest
from fleet.ops.cache import cache, fresh, turn
from fleet.ops.wheels.pip import REFUSED, run_pip
from fleet.ops.wheels.requirements import BUILD, NO_WHEEL, Requirements
from fleet.ops.wheels.tags import common_tags
from fleet.runtime import Runtime

DONE = ".complete"
# of an index, in pip's words: no answer, or one that is no index's
_UNREACHED = re.compile(
    r"Failed to establish a new connection.*|Temporary failure in name resolution.*|NameResolutionError.*|"
    r"Cannot connect to proxy.*|Connect(?:ion|Timeout)Error.*|SSLError.*|Read timed out.*|"
    r"(?:401|403|407|50\d) (?:Client|Server) Error.*"
)


def target_options(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """pip's words for the nodes' interpreter: platforms (best first), Python, implementation and ABI."""
    tags = [tag.split("-") for tag in common_tags(facts)]
    some = next(iter(facts.values()))
    own = next((t for t in tags if t[0].startswith(("cp", "pp"))), ["py3", "none", "any"])
    platforms = dict.fromkeys(t[2] for t in tags if t[2] != "any")
    options = [word for platform in platforms for word in ("--platform", platform)]
    minor = ".".join(some["version"].split(".")[:2])
    return [*options, "--python-version", minor, "--implementation", own[0][:2], "--abi", own[1]]


def _key(requirements: Requirements, options: Sequence[str]) -> str:
    """Names a download: what is asked for, local wheels among that, and what it is resolved for."""
    digests = [file_digest(str(path), os.O_NONBLOCK) for path in requirements.wheels]
    words = ["\0".join(options), requirements.text(), requirements.constraints(), *digests]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]


def collect(
    requirements: Path, facts: Mapping[str, Mapping[str, Any]], runtime: Runtime, *, refresh: bool = False
) -> Path:
    """The folder on the head that holds every wheel the requirements resolve to for these nodes. A second call finds
    it; refresh: resolve again. HostFailed with pip's reason where something cannot be had as a wheel."""
    options = target_options(facts)
    asked = Requirements(requirements)
    if not asked.text():
        raise UsageError(f"{requirements} asks for nothing", hint="name packages there, one on a line")
    key = f"got-{_key(asked, options)}"
    folder = cache() / "wheels" / key
    with turn(key, "another download for these requirements", runtime):
        if (folder / DONE).exists() and not refresh:
            age = time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / DONE).stat().st_mtime))
            runtime.emit(Notice("info", f"wheels as resolved on {age}; --refresh resolves again"))
            return folder
        minor = ".".join(next(iter(facts.values()))["version"].split(".")[:2])
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if minor != here:
            runtime.emit(
                Notice(
                    "warning",
                    f"pip reads 'python_version' in requirements as {here} (this machine's), "
                    f"the hosts run {minor}: conditional requirements may differ",
                )
            )
        runtime.emit(Round("collecting wheels with pip", ()))
        with fresh(folder.with_name(f"{key}.new")) as work:
            got = work / "got"
            got.mkdir()
            _download(asked, options, got, runtime)
            (got / DONE).touch()
            shutil.rmtree(folder, ignore_errors=True)
            got.rename(folder)
    return folder


def _download(asked: Requirements, options: Sequence[str], to: Path, runtime: Runtime) -> None:
    """pip works in a folder of its own, where no file is called like a requirement."""
    words = ["download", "--progress-bar", "off", *options, "-d", str(to), "-r", "requirements", "-c", "constraints"]
    (to.parent / "requirements").write_text(asked.text(), "ascii")
    (to.parent / "constraints").write_text(asked.constraints(), "ascii")
    out = run_pip([*words, "--only-binary=:all:"], to.parent, runtime)
    if out is None:
        return
    if REFUSED in out:
        began = re.findall(r"(?m)^ *(?:Collecting|Processing) (.+)", out) or ["something that a wheel depends on"]
        raise UsageError(f"{began[-1].strip()} {NO_WHEEL}", hint=BUILD)
    errors = re.findall(r"(?m)^ERROR: (?!Exception:)(.+)|: error: (.+)", out)
    said = "".join(errors[-1]) if errors else (out.strip().splitlines() or ["pip failed"])[-1]
    if unreached := _UNREACHED.search(out):
        raise HostFailed(
            f"pip does not reach its package index: {unreached[0].strip()[:300]}",
            kind="collect",
            hint="'pip config list' shows which it asks, PIP_INDEX_URL names another, HTTPS_PROXY a way there; or give "
            "a folder of wheels: 'fleet sync --wheels DIR'",
        )
    raise HostFailed(
        f"pip download: {said}",
        kind="collect",
        hint="no wheel of it fits the hosts' Python: build one there with 'fleet build PATH', or give "
        "pip an index that has it (PIP_EXTRA_INDEX_URL)",
    )
