"""`--wheels requirements.txt`: pip on the head downloads what the nodes' Python wants, once."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.errors import HostFailed, Interrupted, UsageError
from fleet.events import Notice, Round
from fleet.node.base.files import file_digest
from fleet.ops.turn import cache, turn
from fleet.ops.wheels.cache import fresh
from fleet.ops.wheels.requirements import texts
from fleet.ops.wheels.tags import common_tags
from fleet.runtime import Runtime

DONE = ".complete"


def pip_command() -> list[str]:
    """How pip is called on the head: beside fleet's own interpreter, else the PATH's."""
    import importlib.util

    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise UsageError("no pip on this machine", hint=f"{sys.executable} -m ensurepip, or give a folder of wheels")
    return [found]


def target_options(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """pip's words for the nodes' interpreter: platforms (best first), Python, implementation and ABI."""
    tags = [tag.split("-") for tag in common_tags(facts)]
    some = next(iter(facts.values()))
    own = next((t for t in tags if t[0].startswith(("cp", "pp"))), ["py3", "none", "any"])
    platforms = dict.fromkeys(t[2] for t in tags if t[2] != "any")
    options = [word for platform in platforms for word in ("--platform", platform)]
    minor = ".".join(some["version"].split(".")[:2])
    return [*options, "--python-version", minor, "--implementation", own[0][:2], "--abi", own[1]]


def _key(requirements: Path, options: Sequence[str]) -> str:
    """Names a download: the requirements' texts, local wheels they name, and what they are resolved for."""
    digest = hashlib.sha256("\0".join(options).encode())
    for path, text in texts(requirements).items():
        digest.update(f"\0{path.name}\0{text}".encode())
        for word in re.findall(r"^\s*(\S+\.whl)\s*$", text, re.MULTILINE):
            if (path.parent / word).is_file():
                digest.update(file_digest(str(path.parent / word)).encode())
    return digest.hexdigest()[:24]


def collect(
    requirements: Path, facts: Mapping[str, Mapping[str, Any]], runtime: Runtime, *, refresh: bool = False
) -> Path:
    """The folder on the head that holds every wheel the requirements resolve to for these nodes. A second call finds
    it; refresh: resolve again. HostFailed with pip's reason where something cannot be had as a wheel."""
    options = target_options(facts)
    key = f"got-{_key(requirements, options)}"
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
            only_wheels = ["--only-binary=:all:", "--progress-bar", "off", *options]
            _download([*pip_command(), "download", *only_wheels, "-d", str(work), "-r", str(requirements)], runtime)
            if not any(work.glob("*.whl")):
                raise UsageError(f"{requirements} asks for nothing", hint="name packages there, one on a line")
            (work / DONE).touch()
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)
    return folder


def _download(argv: list[str], runtime: Runtime) -> None:
    out = run_pip(argv, runtime)
    if out is None:
        return
    errors = [
        line.partition("ERROR: ")[2] or line.partition("error: ")[2]
        for line in out.splitlines()
        if line.startswith("ERROR: ") or ": error: " in line
    ]
    said = errors[-1] if errors else (out.strip().splitlines() or ["pip failed"])[-1]
    if said.startswith("Invalid requirement") or "no such option" in said:
        raise UsageError(f"pip download: {said}", hint="correct that line of the requirements")
    raise HostFailed(
        f"pip download: {said}",
        kind="collect",
        hint="no wheel of it fits the hosts' Python: build one there with 'fleet build PATH', or give "
        "pip an index that has it (PIP_EXTRA_INDEX_URL)",
    )


def run_pip(argv: list[str], runtime: Runtime, env: Mapping[str, str] | None = None) -> str | None:
    """Run pip on the head with the user's own configuration; None when all is well, else what it said."""
    env = {**os.environ, **(env or {}), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    undo = runtime.cancel.on_set(process.terminate)
    try:
        out, _ = process.communicate()
    finally:
        undo()
    if runtime.cancel.is_set():
        raise Interrupted("interrupted")
    return None if process.returncode == 0 else out
