"""Decides why a process ended, by the end of its output, its exit code, and the kernel's log. Pure.

All readers use this one judge. A wrong cause is worse than none, so an exception that the program may have handled
decides nothing. An exception that is not caught ends Python with exit code 1. Its traceback begins at a module's level,
and is the last one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fleet.protocol.messages.run import KernelLine
from fleet.rules.hint import Hint, first_match
from fleet.rules.hints import HINTS
from fleet.rules.kernel import explains
from fleet.rules.signals import BY_HAND, CRASHES, KILLED, NOT_FOR_MEMORY, signal_of, signalled
from fleet.rules.tracebacks import CHAINED, Part, parts_of, plain, split, states

LAST_LINES = 12  # a process that ends writes at most that many lines; one that goes on may write more
WARNING_LINES = 60
SHOWN_LINES = 60  # of a traceback
FAILED = (None, 1)  # exit codes of a Python that an exception ended; None: not known
UNSTARTED = "the program could not be started there: is it on that node, and executable?"
# what a rank raises because it got SIGTERM
_OF_A_STOP = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|\w*(?:SIGTERM|Signal|Preempt)\w*)\b")
# lines that a process may still write while it ends, and that report no cause: warnings of torch and Python, wandb's
# summary, output of launchers. A line that begins with a blank continues the one before
_ASIDE = re.compile(
    r"\s|$|\[[EWI]\d|[EWI]\d{4} |.*\bWARNING\b|.*Warning: |wandb: |\[\d{4}-\d\d-\d\d .*\] torch\.distributed\.run|"
    r"Exception ignored |Exception in thread |Process \S+:$|frame #\d|<omitting|Extension modules: |Current thread |"
    r"[╭╰]|Aborted|Original exception was:|-- Process \d+ terminated|=+$|-+$|"
    r"Set the environment variable HYDRA_FULL_ERROR"
)
# The line above a traceback. The groups: an exception that ends nothing, a thread's, a child's, one that wraps another,
# a logged one. A phrase of CHAINED is no logged line: the exception above it was never raised and has no traceback.
_ABOVE = re.compile(
    r"(?P<ignored>Exception ignored |Error in (?:atexit|sys\.\w*hook)|Exception in .*threading|future: <|--- Logging)|"
    r"Exception in thread (?P<thread>.*):$|(?P<child>Process \S+:$)|"
    r"(?P<wraps>-- Process \d+ terminated with|Original exception was:|Error executing job with overrides)|"
    rf"(?!{'|'.join(CHAINED)})(?P<logged>(?i:.*\b(?:error|critical|fatal|exception)\b))"
)
_LAUNCHERS = re.compile(
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError|"
    r"subprocess\.CalledProcessError: Command '\[.*python"
)
_OUTERMOST = ("<module>", "_run_module_as_main", "_run_code", None)  # where an uncaught exception ends up
# errors that a rank may raise because another one went away, or did not come
_MAY_FOLLOW = re.compile(
    r"(?i)connection ?(?:\w*error|aborted|closed|refused|reset|was)|broken ?pipe|^EOFError$|remote end closed|"
    r"socket closed|timed[ -]?out|Timeout\w*(?::|$)|no route to host|Dist(?:Network|Store)Error|ncclRemoteError|"
    r"unhandled system error|communicator was aborted"
)
# what a thread raises that only waits for another one
_WAITS = re.compile(r"(?:\w+\.)*(?:Empty|Full|TimeoutError|BrokenBarrierError|CancelledError)$")
# a process's last line if there is no traceback: of a shell, an interpreter, native code, or a parser of arguments
# (argparse, click, hydra)
_FATAL = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::|$)|[\w./-]+: error: |Fatal Python error: |\s*what\(\): |"
    r"fleet: cannot start |(?:\S*/)?(?:ba|da|z|k|fi)?sh: |\S+: line \d+: |\S*python[\d.]*: |\S*numactl: |"
    r"\S+: error while loading shared libraries: |ERROR: Unexpected bus error|.* NCCL WARN |(?:\[rank\d+\]:)?\[E\d+ |"
    r"(?:Bus error|Segmentation fault|Killed)\b|"
    r"(?:Error:|│) (?:No such (?:option|command)|Missing (?:option|argument|parameter)|Invalid value|Got unexpected)|"
    r"Could not (?:override|(?:append to|delete from) config)|(?:Cannot find p|P)rimary config|Error merging override|"
    r"In '[^']*': Could not find '|Loss is (?:nan|-?inf), stopping"
)
# text in an error -> text that marks the warnings before such an error
_WARNINGS = {"NCCL": " NCCL WARN ", "client socket": "cannot be retrieved (gai error"}
_GOES_ON = re.compile(
    r"(?i)\b(?:re-?try(?:ing)?|trying again|attempt \d+|skipp(?:ed|ing)|ignor(?:ed|ing)|falling back)\b"
)
# lines that sys.exit() does not write: those of logs and progress bars
_PROGRESS = re.compile(
    r"[\[({|]*\d{2,4}[-/:]\d\d|[{|]|[\[(]?(?i:(?:\w+[.:])?(?:debug|info|notice|warn\w*)\b)|(?:ERROR|CRITICAL):[\w.]+:|"
    r"(?i:step|epoch|iter|loss|train|eval|sav|load|writ|wrote|resum|start|done|finish|complet)|.*(?:\d%\||it/s|s/it)"
)
_OPTIONAL = (
    "ImportError",
    "ModuleNotFoundError",
)  # a script may handle these and go on without the module; an exception in its handler is then chained to them
# C++ writes this if threads are left when a process exits. Even a process whose work succeeded may abort so. Its last
# line before this one can be any line, and counts only if it complains.
_AT_EXIT = "terminate called without an active exception"
_COMPLAINS = re.compile(
    r"(?i)\b(?:error\b(?!\W*\d)|fatal|invalid|illegal|must|cannot|can't|could not|unable|fail(?:ed|ure)?|denied|"
    r"unsupported|missing|require[sd]|expected)\b"
)
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_ORDER = [hint.pattern for hint in HINTS]


@dataclass(frozen=True)
class Cause:
    """Describes the cause of a process's end. why: the cause in one line. remedy: the next step; {host} in it is the
    host. traceback: the exception that ended it, with those it is chained to. collateral: it only reports another
    rank's death. own: it raised an error of its own. unfit: its host needs a repair before another run. kernel: the
    line of the kernel's log that explains it."""

    why: str | None = None
    remedy: str | None = None
    traceback: str | None = None
    collateral: bool = False
    own: bool = False
    unfit: bool = False
    kernel: str | None = None

    def explains(self, waited: bool) -> bool:
        """Returns whether this cause explains the end of another rank. waited: the other rank timed out as it waited.
        Then a lost connection or a time-out here explains nothing, as it may be a consequence, too."""
        return self.own and not (waited and _MAY_FOLLOW.search(self.why or ""))


def ended_by(tail: str, status: int | None = None, kernel: Sequence[KernelLine] | None = None) -> Cause:
    """Returns the cause of a process's end. tail: the end of its stderr. status: its exit code, 128 + n for signal n;
    None if it is not known. kernel: lines of the kernel's log that name its rank or no rank; None if the log could not
    be read. The time of a line is in seconds from the process's end."""
    if status == 0:
        return Cause()
    text, signal = _Text(states(tail)), signal_of(status)
    block = text.uncaught(status)
    cause = text.last_output(status) if block is None else text.of_traceback(block)
    if cause.collateral:  # ranks may share a log: take the one that raised an error of its own
        others = (text.of_traceback(block) for block in text.blocks if block.by_torch)
        cause = next((other for other in others if other.own), cause)
    for line in reversed(kernel or ()):
        if (rule := explains(line, signal, tail)) is not None:
            return replace(cause, why=rule.meaning, remedy=rule.remedy, unfit=rule.unfit, kernel=line["text"])
    if status in (126, 127):
        return replace(cause, remedy=cause.remedy or UNSTARTED)
    # the output reports that SIGKILL ended a child process, and the kernel's log does not explain it
    if kernel is not None and cause.remedy and KILLED in cause.remedy:
        return replace(cause, remedy=cause.remedy.replace(KILLED, f"{NOT_FOR_MEMORY}: {BY_HAND}"))
    return cause if cause.why else Cause(*signalled(signal, kernel is not None))


class _Block(NamedTuple):
    """A traceback, with those it is chained to. number: index of the line after its exception. above: match of the line
    above it, see _ABOVE. by_torch: torch wrote it, for an uncaught exception."""

    trace: str
    parts: Sequence[Part]
    number: int
    above: re.Match[str] | None
    by_torch: bool

    def of(self, *kinds: str) -> bool:
        return self.above is not None and any(self.above[kind] for kind in kinds)

    @property
    def may_be_handled(self) -> bool:
        """Returns whether the program may have handled the exception and gone on: it begins inside a function, or is
        logged."""
        file, function = next(iter(self.parts[-1].frames), ("", None))
        inside = function not in _OUTERMOST and not self.of("wraps")
        return not self.by_torch and (inside or file == "<string>" or self.of("logged"))


class _Text:
    """Holds the output of a process: its tracebacks (`blocks`) and the lines outside of them."""

    def __init__(self, raw: Sequence[str]) -> None:
        self.lines, self.blocks, inside = plain(raw), list[_Block](), set[int]()
        for first, end in [(first, end) for is_trace, first, end in split(raw) if is_trace]:
            trace = "\n".join(self.lines[first:end])
            parts = parts_of(trace)
            # the lines after an exception are more of its message, or later output: they look the same
            number = end - parts[-1].exception.count("\n") + parts[-1].at
            inside.update(range(first, number))
            above = _ABOVE.match(next((line for line in reversed(self.lines[:first]) if line.strip()), ""))
            self.blocks.append(_Block(trace, parts, number, above, raw[first] != self.lines[first]))
        self.outside = [(n, line) for n, line in enumerate(self.lines) if line.strip() and n not in inside]
        # line with # for numbers -> its first index
        self.first = {_NUMBER.sub("#", line): n for n, line in reversed(self.outside)}

    def after(self, block: _Block) -> list[str]:
        """Returns the lines that were written after a traceback."""
        return [line for n, line in self.outside if n >= block.number and not _ASIDE.match(line)]

    def goes_on(self, number: int, following: Sequence[str]) -> bool:
        """Returns whether the process went on after a line: more lines follow than an ending process writes, or lines
        like earlier ones."""
        if len(following) > LAST_LINES or any(map(_GOES_ON.search, following)):
            return True
        return any(self.first.get(_NUMBER.sub("#", line), number) < number for line in following)

    def ends_with(self, block: _Block, status: int | None) -> bool:
        """Returns whether a process with that exit code ended with this traceback and the lines after it."""
        after, signal = self.after(block), signal_of(status)
        if block.may_be_handled:
            return status in FAILED and block is self.blocks[-1] and not after
        if not (status in FAILED or block.by_torch or signal in CRASHES) and (not signal or after):
            return False
        return not self.goes_on(block.number, after)

    def uncaught(self, status: int | None) -> _Block | None:
        """Returns the traceback that ended the process; None if there is none."""
        own = [block for block in self.blocks if not block.of("ignored", "thread", "child")]
        own = [block for block in own if not _LAUNCHERS.match(block.parts[-1].exception)] or own
        if own and own[-1].parts[-1].exception and self.ends_with(own[-1], status):
            before = self.blocks[: self.blocks.index(own[-1])] if _WAITS.match(own[-1].parts[-1].root) else []
            waited = (it for it in reversed(before) if it.of("thread", "child"))
            return next((it for it in waited if self.after(it) == self.after(own[-1])), own[-1])
        last = self.blocks[-1] if self.blocks else None
        return last if last and last.of("thread") and not self.after(last) and status in FAILED else None

    def of_traceback(self, block: _Block) -> Cause:
        """Returns the cause that a traceback shows. Of chained exceptions it is the root, unless that has no
        message."""
        parts = block.parts
        hints = [self._hint(f"{part.exception}\nraised in {part.file}") for part in parts]
        answers = [
            _OF_A_STOP.match(part.exception) is not None or (hint is not None and hint.collateral)
            for part, hint in zip(parts, hints, strict=True)
        ]
        # the last exception may come from the cleanup, and only report that other ranks end, too. Then it is a
        # consequence of the one before
        own = [n for n, part in enumerate(parts) if not answers[n] and not part.root.startswith(_OPTIONAL)]
        first = last = own[-1] if own and answers[-1] else len(parts) - 1
        while first and parts[first].translates(parts[first - 1]):
            first -= 1
        chain = range(first, last + 1)
        root, again = next((parts[n].root for n in chain if ": " in parts[n].root), parts[last].root), parts[last].root
        why = root if root == again else f"{root}, raised again as {again}"
        thread = block.above and block.above["thread"]
        shown = "\n".join(block.trace.split("\n")[-SHOWN_LINES:])
        hint = min(filter(None, (hints[n] for n in chain)), key=lambda it: _ORDER.index(it.pattern), default=None)
        return _cause(f"{why}, in {thread}" if thread else why, hint, shown, not answers[last])

    def last_output(self, status: int | None) -> Cause:
        """Returns the cause by the last line of native code, a shell, an interpreter or sys.exit()."""
        if signal_of(status) and signal_of(status) not in CRASHES:
            return Cause()
        most = 0 if status is not None and 1 < status < 128 else LAST_LINES
        found, after = list[str](), list[str]()
        for n, line in reversed(self.outside):
            if len(after) > most or _FATAL.match(line) and self.goes_on(n, after):
                break
            if _FATAL.match(line) and not _GOES_ON.search(line) and "Warning: " not in line:
                # an argument parser prints its usage before the error
                found.append("\n".join(self.lines[:n][-LAST_LINES:] + [line]) if ": error: " in line else line)
            elif not _ASIDE.match(line):
                after.append(line)
        words = [(n, line) for n, line in self.outside if line != _AT_EXIT]
        aborts = self.outside[-1:] != words[-1:]
        for n, line in words[-1:] if (status == 1 or aborts) and not found else ():
            if aborts and not _COMPLAINS.search(line):
                continue
            if not _ASIDE.match(line) and not _PROGRESS.match(line) and not self.goes_on(n, [line]):
                found = [line]
        hint = next(filter(None, map(self._hint, found)), None)
        why = found[0].rpartition("\n")[2].strip().removeprefix("what():").strip(" │") if found else ""
        return _cause(why, hint) if found else Cause()

    def _hint(self, text: str) -> Hint | None:
        """Returns the rule that explains an error, by its text and the warnings before it."""
        signs = [warning for sign, warning in _WARNINGS.items() if sign in text]
        warned = [line for line in self.lines[-WARNING_LINES:] if any(sign in line for sign in signs)]
        return first_match(HINTS, "\n".join([text, *warned]))


def _cause(why: str, hint: Hint | None, trace: str | None = None, own: bool = False) -> Cause:
    it = hint or Hint("", "")
    return Cause(why, it.remedy or None, trace, it.collateral, own and not it.collateral, it.unfit)
