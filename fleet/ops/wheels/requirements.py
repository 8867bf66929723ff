"""`--wheels requirements.txt`: pip on the head downloads what the nodes' Python wants, once. What would make it run a
package's own code here is refused, by its line.

Wheels are data to pip, but it runs the setup of folders, editable projects, repositories and source archives, also
with --only-binary. https://pip.pypa.io/en/stable/reference/requirements-file-format/ is what such a file may hold.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from fleet.errors import HostFailed, Interrupted, UsageError
from fleet.events import Notice, Round
from fleet.node.base.files import file_digest
from fleet.ops.cache import cache, fresh, turn
from fleet.ops.wheels.tags import common_tags
from fleet.runtime import Runtime

INCLUDES = ("-r", "-c", "--requirement", "--constraint")
# options with a value and without one that decide where wheels come from and which are taken
VALUED = (*INCLUDES, "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--only-binary")
PLAIN = ("--pre", "--prefer-binary", "--require-hashes", "--no-index")
# what pip takes for a path, a URL or an archive, and not for a name
PLACE = r"[/\\]|^\.|\.(zip|whl|tar|tgz|tbz|txz|tlz|tar\.(gz|bz2|xz|lzma|lz))\s*(\[|$)"
BUILD = "build it on a node and hand out the wheel: fleet build PATH"


def texts(path: Path, where: str | None = None, seen: dict[Path, str] | None = None) -> Mapping[Path, str]:
    """A requirements file and all that it includes, each looked through. where: the FILE:LINE that names it."""
    path, seen = path.resolve(), {} if seen is None else seen
    if path in seen:
        return seen
    try:
        seen[path] = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        hint = "correct that line" if where else "give a folder of wheels, or a requirements file"
        raise UsageError(f"cannot read {path}: {reason}", where=where, hint=hint) from error
    for number, line in lines(seen[path]):
        at = f"{path}:{number}"
        for included in _options(line, at) if line.startswith("-") else _requirement(line, at):
            texts(path.parent / included, at, seen)
    return seen


def lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, logical line) as pip joins and strips them; none that are empty."""
    joined, begun = "", 0
    for number, raw in enumerate([*text.replace("\r\n", "\n").split("\n"), ""], 1):
        begun = begun if joined else number
        comment = re.match(r"\s*#", raw)
        if raw.endswith("\\") and not comment:
            joined += raw[:-1]
            continue
        line = re.sub(r"(^|\s+)#.*$", "", f"{joined} {raw}" if comment and joined else joined + raw).strip()
        joined = ""
        if line:
            yield begun, line


def _refuse(line: str, where: str, why: str, hint: str) -> UsageError:
    return UsageError(f"'{line}' {why}", where=where, hint=hint)


def _options(line: str, where: str) -> Iterator[str]:
    """The files that a line of options includes."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _refuse(line, where, f"cannot be read: {error}", "correct that line") from None
    while words:
        word = words.pop(0)
        name, given, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name in PLAIN and not given:
            continue
        if name not in VALUED or not (given or words):
            why = (
                "would run a package's code on this machine"
                if re.match("-e|--e|--no-b", word)
                else "is no option that fleet hands to pip"
            )
            raise _refuse(line, where, why, BUILD if "run" in why else f"it takes {', '.join(VALUED + PLAIN)}")
        value = value if given else words.pop(0)
        if name in INCLUDES:
            if "://" in value:
                raise _refuse(line, where, "includes a file that is not on this machine", "download it first")
            yield value


def _requirement(line: str, where: str) -> tuple[()]:
    """Nothing, where it is a name that indexes know, or a wheel."""
    text, *options = re.split(r"\s+(?=--?\w)", line)
    for option in options:
        if not option.startswith("--hash"):
            raise _refuse(
                line,
                where,
                f"has an option that fleet does not hand to pip: {option.split('=')[0]}",
                "leave that option out, or " + BUILD,
            )
    place = text.partition(" ; ")[0].rstrip()
    with contextlib.suppress(InvalidRequirement):  # a path, or nothing that pip takes either
        place = Requirement(text).url or place
    if re.search(PLACE, place) and not re.sub(r"[#?].*$", "", place).endswith(".whl"):
        raise _refuse(line, where, "is no wheel: pip would run its code on this machine", BUILD)
    return ()


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
