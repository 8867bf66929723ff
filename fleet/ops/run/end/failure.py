"""Decides what ended a run, by the output of its ranks: the root cause, the remedy, and the commands to type next.
Pure, except that it reads the ends of logs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fleet.answers.runs import FirstFailure
from fleet.delivery.ignore import missed
from fleet.errors import FleetError
from fleet.node.gang.ends import SIGTERM, Failure, RankEnd
from fleet.node.gang.gang import Gang
from fleet.ops.run.kept.documents import RUN, read_object
from fleet.ops.run.kept.folder import OPTION, STACKS_FILE
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import KernelLine, Why
from fleet.rules.ended import Cause, ended_by
from fleet.rules.hint import first_match
from fleet.rules.kernel import KERNEL, explains
from fleet.rules.signals import signal_of

Tail = Callable[..., str]
CUT = "the host hangs, or the link to it is cut"
# messages of Python, C and the shell about a missing file, with its path
MISSING = re.compile(
    r"(?:FileNotFoundError|No such file or directory).{0,200}?['\"]([^'\"\n]{1,4096})['\"]|"
    r"([^\s:'\"]{1,255}): No such file or directory"
)
KERNEL_LINES = 20  # the most lines that are read: more than any honest node sends
TAIL = 100  # lines of a log that a next step shows
NOT_THE_SCRIPT = ("lease", "signal", "supervisor", "removed", "reboot")  # failures that are not the script's
RUNS_DIR = Path("runs")  # where logs are unless --runs-dir names another folder
READERS = ("attach", "launch", "logs")  # verbs of next steps that have that option
# a line in which a script reports that it saves a checkpoint
_SAVED = re.compile(
    r"(?:sav(?:ed|ing)|wrote|writ(?:ing|ten)|checkpoint\w*|snapshot)\b.{0,99}?\w\.(?:pt|pth|bin|ckpt|safetensors|npz)\b|"
    r"(?:sav(?:ed|ing)|wrote|writing|written)\b.{0,60}?checkpoint|Saving model checkpoint to",
    re.IGNORECASE,
)


# -- the root cause ---------------------------------------------------------------------------------------
def left_early(failure: Failure, gang: Gang) -> tuple[RankEnd, float] | None:
    """Returns (the last rank that ended with 0 before the failure, the seconds between its end and the failure), or
    None. Other ranks may have waited for that rank."""
    ends = [
        (failure.time - node.clock.here(end.time), end)
        for node in gang.nodes.values()
        for end in node.ends.values()
        if not end.failed
    ]
    before = [(seconds, end) for seconds, end in ends if seconds > 0]
    seconds, end = min(before, key=lambda found: found[0], default=(0.0, None))
    return (end, seconds) if end is not None else None


def before_stop(end: RankEnd, tail: Tail) -> Cause | None:
    """Returns the cause of a rank's death, by what the rank wrote before SIGTERM came. Returns None if SIGTERM came
    before the rank had raised an error of its own."""
    cause = ended_by(tail(end.host, end.rank, before=True), end.exit_code if end.until is None else None)
    return cause if cause.own or end.until is None else None


def kernel_lines(failure: Failure, gang: Gang) -> list[KernelLine] | None:
    """Returns what the failed host's kernel logged during the run, without lines about other ranks. Times are seconds
    from the failure. Returns None if the log could not be read."""
    node = gang.nodes[failure.host]
    lines, clock = node.status.get("kernel"), node.clock
    if lines is None:
        return None
    mine = [line for line in lines[-KERNEL_LINES:] if line["rank"] in (None, failure.rank)]
    return [{**line, "time": clock.here(line["time"]) - failure.time} for line in mine]


def cause_on_other_host(
    cause: Cause, failure: Failure, gang: Gang, missing: Collection[int], tail: Tail
) -> tuple[str, Cause]:
    """Returns (host, root cause). If the failed rank only reports another rank's death, looks for a hardware error in
    the kernel logs of other hosts. The error counts if its host has a missing rank, or a failed rank whose end the
    error explains. Without such an error, returns the failed host and `cause`. missing: ranks that did not come to
    where the others waited."""
    if not cause.collateral or cause.kernel is not None:
        return failure.host, cause
    for host, node in gang.nodes.items():
        lost = not set(missing).isdisjoint(node.ranks)
        ends = [end for end in node.ends.values() if end.failed and not end.asked and end.until is None]
        texts = [] if missing else [(end.exit_code, tail(host, end.rank)) for end in ends]
        for line in reversed((node.status.get("kernel") or [])[-KERNEL_LINES:]):
            rule = first_match(KERNEL, line["text"])
            if host == failure.host or rule is None or not rule.unfit:
                continue
            if lost or any(explains(line, signal_of(status), text) for status, text in texts):
                why = f"on {host}: {rule.meaning}"
                return host, replace(cause, why=why, remedy=rule.remedy, kernel=line["text"], unfit=True)
    return failure.host, cause


def why_of(error: FleetError) -> Why:
    """Returns an error in the form of a verdict's "why"."""
    return {"kind": error.kind, "message": error.message, "hint": error.hint}


def not_sent(text: str, run: RunRecord) -> str | None:
    """Returns a hint about a file that a rank did not find because syncs leave it out, or None. Such a file is on this
    head, in the folder in which the run was started. text: the rank's last lines."""
    document = read_object(run.logs / RUN)
    folder, hosts = (document.get("fleet") or {}).get("folder"), document.get("hosts") or {}
    if not isinstance(folder, str):
        return None
    for path in ("".join(found) for found in reversed(MISSING.findall(text))):
        for place in {str(node.get("workdir")).removeprefix("~").rstrip("/") + "/" for node in hosts.values()}:
            path = path.partition(place)[2] or path  # a workdir below ~: the home folder on the node is not known here
        if hint := missed(Path(folder), path):
            return hint
    return None


# -- as text ---------------------------------------------------------------------------------------------
def hint(failure: Failure, run: RunRecord) -> str | None:
    """Returns a hint for a kind of failure; used if no log line gives one."""
    host, lost = failure.host, (failure.why and failure.why["hint"]) or CUT
    hints: Mapping[str, str] = {
        "node": f"{lost}{'' if lost.endswith('?') else ';'} 'fleet exec -w {host} -- uptime' shows when it is back",
        "link": f"nodes go on without this machine for {run.lease or 0:g} s (--lease)",
        "lease": "this command or this machine was stopped for so long, or its link down; --lease S gives more time",
        "frozen": f"the host was suspended, or starved; 'fleet exec -w {host} -- dmesg' may say why",
        "signal": f"a shutdown, or a 'kill' by hand? 'fleet exec -w {host} -- last -x' may say",
        "removed": "a live run needs it; its logs until then are here, and folders of old runs go by themselves",
        "reboot": f"a crash, or a reboot by hand? 'fleet exec -w {host} -- last -x' may say",
    }
    if failure.why is not None and failure.kind in ("host-key", "stalled", "ended"):
        return failure.why["hint"]
    return hints.get("signal" if failure.what == "rank" and failure.signal == SIGTERM else failure.what)


def all_silent_text(nodes: int, lease: float | None) -> str:
    """Returns the text of the warning that no node sends anything."""
    who = f"all {nodes} nodes are silent at once" if nodes > 1 else "the node is silent"
    long = "for ever: this run has no lease" if lease is None else f"for {lease:g} s (--lease)"
    return f"{who}; is it this machine's own link? They are waited for: they go on without this machine {long}"


def fate_text(lease: float | None, helper: int | None) -> str:
    """Returns the text about how ranks end on a host that was given up. helper: pid of the background process that goes
    on trying to stop them."""
    ends = "its ranks run until a user stops them: this run has no lease"
    if lease is not None:
        ends = f"its ranks end by themselves {lease:g} s after it lost the head"
    more = f"; a helper (pid {helper}) stops them and brings the rest of the logs when it answers"
    return ends + (more if helper else "")


# -- what to type next ------------------------------------------------------------------------------------------
def next_steps(failure: FirstFailure, run: RunRecord, outputs: Iterable[str]) -> list[str]:
    """Returns the commands to type next. outputs: last lines of ranks."""
    steps, file = [], run.logs / STACKS_FILE
    stacks = [shlex.join(["cat", str(file)])] if file.exists() else []  # `fleet attach` writes none
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
    if any(_SAVED.search(text) for text in outputs):
        steps.append(shlex.join(["fleet", "get", run.run_id]))
    return steps


def _line(run: RunRecord, verb: str, *arguments: str) -> str:
    return shlex.join(["fleet", verb, *arguments, *_where(run.logs.parent)])


def _where(runs_dir: Path) -> list[str]:
    return [] if runs_dir.resolve() == RUNS_DIR.resolve() else [OPTION, str(runs_dir)]


def typed_here(step: str, runs_dir: Path) -> str:
    """Returns a command of a summary, with a --runs-dir that is valid in the current folder. The process that wrote the
    summary may have been in another one."""
    argv = shlex.split(step)
    if argv[:2] not in (["fleet", verb] for verb in READERS):
        return step
    at = argv.index(OPTION) if OPTION in argv else len(argv)
    return shlex.join([*argv[:at], *argv[at + 2 :], *_where(runs_dir.resolve())])
