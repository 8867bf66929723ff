"""Lists commands to type after a run has failed, the most fitting first. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from fleet.answers.runs import FirstFailure
from fleet.ops.run.kept.folder import OPTION, STACKS_FILE
from fleet.ops.run.kept.record import RunRecord

TAIL = 100
NOT_THE_SCRIPT = ("lease", "signal", "supervisor", "removed", "reboot")  # what ended it
RUNS_DIR = Path("runs")  # where logs are unless --runs-dir names another folder
READERS = ("attach", "launch", "logs")  # verbs of next steps that have that option
# a script that prints its checkpoint
_SAVED = re.compile(
    r"(?:sav(?:ed|ing)|wrote|writ(?:ing|ten)|checkpoint\w*|snapshot)\b.{0,99}?\w\.(?:pt|pth|bin|ckpt|safetensors|npz)\b|"
    r"(?:sav(?:ed|ing)|wrote|writing|written)\b.{0,60}?checkpoint|Saving model checkpoint to",
    re.IGNORECASE,
)


def next_steps(failure: FirstFailure, run: RunRecord, said: Iterable[str]) -> list[str]:
    """said: last lines of ranks."""
    steps, file = [], run.logs / STACKS_FILE
    stacks = [shlex.join(["cat", str(file)])] if file.exists() else []  # who only looked on has none
    if failure.what == "link":
        return [_line(run, "attach", run.run_id)]
    if failure.what == "stalled":
        return stacks
    if failure.what in NOT_THE_SCRIPT:
        steps.append(_line(run, "launch", "--again", run.run_id))
    elif failure.unfit:
        steps.append(_line(run, "launch", "--again", run.run_id, "-x", failure.unfit))
    if failure.left_early:
        steps.append(_line(run, "logs", run.run_id, "--rank", str(failure.left_early.rank), "--tail", str(TAIL)))
    if failure.missing:
        steps += stacks
        steps.append(_line(run, "logs", run.run_id, "--rank", ",".join(map(str, failure.missing)), "--tail", str(TAIL)))
    if failure.rank is not None and failure.what in ("rank", "vanished"):
        stream = ["--err"] * failure.log.endswith(".err")
        steps.append(_line(run, "logs", run.run_id, "--rank", str(failure.rank), *stream, "--tail", str(TAIL)))
    elif failure.what == "engine":
        steps.append(_line(run, "logs", run.run_id, "--host", failure.host, "--tail", str(TAIL)))
    if any(_SAVED.search(text) for text in said):
        steps.append(shlex.join(["fleet", "get", run.run_id]))
    return steps


def _line(run: RunRecord, verb: str, *arguments: str) -> str:
    return shlex.join(["fleet", verb, *arguments, *_where(run.logs.parent)])


def _where(runs_dir: Path) -> list[str]:
    return [] if runs_dir.resolve() == RUNS_DIR.resolve() else [OPTION, str(runs_dir)]


def typed_here(step: str, runs_dir: Path) -> str:
    """A step of a summary that was written in another folder, as by a keeper, which is in none."""
    argv = shlex.split(step)
    if argv[:2] not in (["fleet", verb] for verb in READERS):
        return step
    at = argv.index(OPTION) if OPTION in argv else len(argv)
    return shlex.join([*argv[:at], *argv[at + 2 :], *_where(runs_dir.resolve())])
