"""Recognises a SCRIPT that is no Python script, for engines that start Python: shells, interpreters, other launchers.
Gives a hint for each."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from fleet.engines.launchers import BEGIN, OTHERS
from fleet.engines.translate import PYTHON, launch_arguments
from fleet.errors import UsageError
from fleet.model import Job

_SHELLS = re.compile(r"(ba|z|da|k)?sh")
_FIRST_LINE = re.compile(rb"#! *\S*?(/env +)?(ba|z|da|k)?sh\b")
# programs that start ranks, and the names of engines
LAUNCHERS = {command.split()[0] for command in BEGIN}
NO_PROGRAMS = (".yaml", ".yml", ".json", ".txt")


def is_shells(script: str) -> bool:
    """Returns whether `script` is a shell or a shell script, by its name or the first line of the file on this
    machine."""
    path = PurePosixPath(script)
    if path.suffix in (".sh", ".bash", ".zsh", ".py") or _SHELLS.fullmatch(path.name):
        return path.suffix != ".py"
    try:
        with open(script if os.path.isfile(script) else os.devnull, "rb") as file:
            return _FIRST_LINE.match(file.readline(200)) is not None
    except (OSError, ValueError):
        return False


def starts_another(program: str) -> bool:
    """Returns whether `program` is an interpreter, a shell or a launcher, which runs the program in its arguments."""
    name = PurePosixPath(program).name
    return name in LAUNCHERS or any(kind.fullmatch(name) for kind in (_SHELLS, PYTHON))


def refuse(job: Job) -> None:
    """Raises UsageError if job.script is no Python script."""
    name = PurePosixPath(job.script).name
    if is_shells(job.script):
        path = job.script if "/" in job.script or _SHELLS.fullmatch(name) else f"./{job.script}"
        raise UsageError(
            f"{job.script} is no Python script, and engine {job.engine} starts Python",
            hint=_line(["--engine", "command", path, *job.args]),
        )
    if job.script in OTHERS:
        raise UsageError(f"SCRIPT is a Python script, and {name} is none", hint=OTHERS[job.script])
    if PurePosixPath(name).suffix in NO_PROGRAMS:
        raise UsageError(
            f"SCRIPT is a Python script, and {job.script} is none",
            hint=_line(["-i", job.script, *job.args])
            if job.args and name.endswith("ml")
            else "an inventory comes after -i, a file that the script reads comes after the script",
        )
    line = launch_arguments([job.script, *job.args])
    if line is not None:
        raise UsageError(
            "SCRIPT is a Python script; "
            + (
                f"{name} is started by fleet"
                if PYTHON.fullmatch(name)
                else f"fleet does what {name} does, on all hosts"
            ),
            hint=_line(line),
        )
    if PYTHON.fullmatch(name):
        raise UsageError(
            f"SCRIPT is a Python script, not {name}", hint=_line(["--engine", "command", job.script, *job.args])
        )


def refuse_owned(job: Job, arguments: Sequence[str], owned: Mapping[str, str | None]) -> None:
    """Raises UsageError for a launcher's option that fleet itself passes. owned: option -> fleet's option for it, or
    None."""
    for arg in arguments:
        option = arg.partition("=")[0]
        name = option.removeprefix("--").replace("_", "-")
        if option.startswith("--") and name in owned:
            instead = owned[name]
            raise UsageError(
                f"{option}: fleet itself passes that to {job.engine}'s launcher on each node",
                hint=f"leave it away; fleet's own option is {instead}" if instead else "leave it away",
            )


def _line(argv: Sequence[str]) -> str:
    return f"fleet launch {shlex.join(argv)}"
