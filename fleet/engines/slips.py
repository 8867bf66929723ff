"""Recognises what is no Python script where an engine starts Python: shells, interpreters, other launchers. Each has
its hint."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from fleet.engines.names import DEFAULT, OWN
from fleet.errors import UsageError
from fleet.model import Job

_SHELLS = re.compile(r"(ba|z|da|k)?sh")
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
# programs that start ranks; one that is called as an engine is, is meant by it
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "colossalai", "mpirun", "mpiexec")
# the options, without dashes, that give launchers the ranks of a node; the first is fleet's own, too
RANKS = ("nproc-per-node", "nproc", "num-gpus", "num-accelerators")


def is_shells(script: str) -> bool:
    """A shell's script, or a shell."""
    path = PurePosixPath(script)
    return path.suffix in (".sh", ".bash", ".zsh") or _SHELLS.fullmatch(path.name) is not None


def starts_another(program: str) -> bool:
    """An interpreter, a shell or a launcher: what it is given is what runs."""
    name = PurePosixPath(program).name
    return name in LAUNCHERS or any(kind.fullmatch(name) for kind in (_SHELLS, _PYTHON))


def refuse(job: Job) -> None:
    """UsageError when job.script is none that Python could start."""
    name = PurePosixPath(job.script).name
    if is_shells(job.script):
        path = job.script if "/" in job.script or _SHELLS.fullmatch(name) else f"./{job.script}"
        raise UsageError(
            f"{job.script} is no Python script, and engine {job.engine} starts Python",
            hint=_line(["--engine", "command", path, *job.args]),
        )
    if _PYTHON.fullmatch(name):
        if "-m" in job.args:
            raise UsageError(
                f"SCRIPT is a Python script, not {name}", hint=_line(["--engine", "command", job.script, *job.args])
            )
        raise UsageError(f"SCRIPT is a Python script; {name} is started by fleet", hint=_line(_own(job.args)))
    if name in LAUNCHERS:
        engine = name if job.engine == DEFAULT and name in OWN else job.engine
        options = ["--engine", engine] if engine != DEFAULT else []
        raise UsageError(
            f"SCRIPT is a Python script; fleet does what {name} does, on all hosts",
            hint=_line([*options, *_ranks(job.args), *_own(job.args)]),
        )


def refuse_owned(job: Job, words: Sequence[str], owned: Mapping[str, str | None]) -> None:
    """UsageError for a launcher's option that fleet gives it. owned: option -> fleet's for it; None: nothing is."""
    for arg in words:
        option = arg.partition("=")[0]
        name = option.removeprefix("--").replace("_", "-")
        if option.startswith("--") and name in owned:
            instead = owned[name]
            raise UsageError(
                f"{option}: fleet itself tells that {job.engine}'s launcher on each node",
                hint=f"leave it away; fleet's own option is {instead}" if instead else "leave it away",
            )


def _own(args: Sequence[str]) -> list[str]:
    """From the Python script on."""
    at = next((i for i, arg in enumerate(args) if arg.endswith(".py")), None)
    return ["train.py"] if at is None else list(args[at:])


def _ranks(args: Sequence[str]) -> list[str]:
    """Returns the number of ranks on a node that a launcher's arguments name, as fleet's own arguments."""
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        option, equals, value = arg.partition("=")
        value = value if equals else following
        if option[:1] == "-" and option.lstrip("-").replace("_", "-") in RANKS and value.isdecimal():
            return ["--nproc-per-node", value]
        if arg.endswith(".py"):
            break
    return []


def _line(argv: Sequence[str]) -> str:
    return f"fleet launch {shlex.join(argv)}"
