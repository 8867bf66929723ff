"""What a process died of, by the end of what it wrote, how it ended, and what its kernel says. Pure.

One judge for all readers. A cause that is wrong costs more than none: what may have been handled decides nothing. An
exception that nobody caught ends Python with 1, begins at a module's level, and is its last traceback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.rules.hint import Hint, first_match
from fleet.rules.hints import HINTS
from fleet.rules.kernel import Note, explains
from fleet.rules.signals import CRASHES, signal_of, signalled
from fleet.rules.tracebacks import HEADER, Part, exception_of, parts_of, plain, split, states

LAST_LINES = 12  # that a process writes while it ends, and more only where it goes on
NCCL_LINES = 60
SHOWN_LINES = 60  # of a traceback
UNSTARTED = "the program could not be started there: is it on that node, and executable?"
FAILED = (None, 1)  # exit codes of a Python that an exception ended, and where it is not known
# what a rank raises because it got SIGTERM
_OF_A_STOP = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|\w*(?:SIGTERM|Signal|Preempt)\w*)\b")
# what others write while a process ends: torch's and Python's warnings, wandb's summary, launchers; what goes on a line
_ASIDE = re.compile(
    r"\s|$|\[[EWI]\d|[EWI]\d{4} |.*\bWARNING\b|.*Warning: |wandb: |\[\d{4}-\d\d-\d\d .*\] torch\.distributed\.run|"
    r"Exception ignored |Exception in thread |Process \S+:$|frame #\d|<omitting|Extension modules: |Current thread |"
    r"Aborted|Original exception was:|-- Process \d+ terminated|=+$|-+$"
)
# of others: what Python writes before a traceback that ends nothing, and before that of a thread, of a child
_IGNORED = re.compile(
    r"Exception ignored |Error in (?:atexit|sys\.\w*hook)|Exception in .*threading|future: <|--- Logging error"
)
_THREAD = re.compile(r"Exception in thread (.*):$")
_CHILD = re.compile(r"Process \S+:$")
_WRAPPED = re.compile(r"-- Process \d+ terminated with|Original exception was:|Error executing job with overrides")
_LAUNCHERS = re.compile(
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError|"
    r"subprocess\.CalledProcessError: Command '\[.*python"
)
_LOGGED = re.compile(r"(?i).*\b(?:error|critical|fatal|exception)\b")
_MODULE_LEVEL = ("<module>", "_run_module_as_main", "_run_code", None)
# what a thread raises that only waits for another one
_WAITS = re.compile(
    r"(?:\w+\.)*(?:Empty|\w*TimeoutError|BrokenBarrierError|CancelledError)\b|"
    r"[\s\S]*raised in .*/(?:queue|threading|multiprocessing/\w+|concurrent/futures/_base)\.py$"
)
# a process's last lines where there is no traceback: a shell's, an interpreter's, an argument parser's, native code's
_FATAL = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::|$)|[\w./-]+: error: |Fatal Python error: |\s*what\(\): |"
    r"fleet: cannot start |(?:\S*/)?(?:ba|da|z|k|fi)?sh: |\S+: line \d+: |\S*python[\d.]*: |\S*numactl: |"
    r"\S+: error while loading shared libraries: |ERROR: Unexpected bus error|.* NCCL WARN |(?:\[rank\d+\]:)?\[E\d+ |"
    r"(?:Bus error|Segmentation fault|Killed)\b"
)
_NCCL = re.compile(r" NCCL WARN ")
_UNRESOLVED = re.compile(r"cannot be retrieved \(gai error")
_GOES_ON = re.compile(
    r"(?i)\b(?:re-?try(?:ing)?|trying again|attempt \d+|skipp(?:ed|ing)|ignor(?:ed|ing)|falling back)\b"
)
# lines that no sys.exit() writes: a log's, a progress bar's
_PROGRESS = re.compile(
    r"[\[({|]*\d{2,4}[-/:]\d\d|[{|]|[\[(]?(?i:(?:\w+[.:])?(?:debug|info|notice|warn\w*)\b)|(?:ERROR|CRITICAL):[\w.]+:|"
    r"(?i:step|epoch|iter|loss|train|eval|sav|load|writ|wrote|resum|start|done|finish|complet)|.*(?:\d%\||it/s|s/it)"
)
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True)
class Cause:
    """What a process died of. why: in a line. traceback: the exception that ended it, with those it is chained to.
    remedy: the next step, in which {host} stands for its host. collateral: it only reports another rank's death. own:
    it raised an error of its own. unfit: its host is not fit for another run as it is. kernel: the line that explains
    it."""

    why: str | None = None
    traceback: str | None = None
    remedy: str | None = None
    collateral: bool = False
    own: bool = False
    unfit: bool = False
    kernel: str | None = None


def ended_by(tail: str, status: int | None = None, kernel: Sequence[Note] | None = None) -> Cause:
    """Returns the cause of a process's end. tail: the end of its stderr. status: its exit code, 128 + n of a signal;
    None: not known. kernel: what the kernel said since it began; None: not known."""
    cause = _by_text(tail, status)
    for note in reversed(kernel or ()):
        if (rule := explains(note, signal_of(status), tail)) is not None:
            return replace(cause, why=rule.meaning, remedy=rule.remedy, unfit=rule.broken, kernel=note.text)
    if status in (126, 127):
        return replace(cause, remedy=cause.remedy or UNSTARTED)
    if cause.why is not None or not signal_of(status):
        return cause
    why, remedy = signalled(signal_of(status), kernel is not None)
    return Cause(why, remedy=remedy)


def _by_text(tail: str, status: int | None) -> Cause:
    if status == 0:
        return Cause()
    text = _Text(states(tail))
    block = text.uncaught(status)
    return text.last_words(status) if block is None else _of_traceback(block, text)


# -- tracebacks -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Block:
    """A traceback, with those it is chained to. number: of the line behind its exception. above: the line above it.
    after: lines that were written behind it."""

    trace: str
    number: int
    above: str
    of_torch: bool
    parts: Sequence[Part]
    after: Sequence[str]
    goes_on: bool

    @property
    def is_own(self) -> bool:
        return not any(it.match(self.above) for it in (_IGNORED, _THREAD, _CHILD))

    @property
    def of_launcher(self) -> bool:
        return _LAUNCHERS.match(self.parts[-1].exception) is not None

    @property
    def is_printed(self) -> bool:
        """Returns whether a program may have written it, and gone on: it begins inside a function, or is logged."""
        file, function = next(iter(self.parts[-1].frames), ("", None))
        inside = function not in _MODULE_LEVEL and not _WRAPPED.match(self.above)
        return inside or file == "<string>" or (_LOGGED.match(self.above) is not None and not self.of_torch)

    def ends(self, status: int | None) -> bool:
        """Returns whether a process with that exit code ended with it."""
        if not self.parts[-1].exception or self.goes_on or len(self.after) > LAST_LINES:
            return False
        if self.of_torch:  # which writes so of what nobody caught
            return True
        if status in FAILED:
            return not (self.is_printed and self.after)
        if self.is_printed or not signal_of(status):
            return False
        return signal_of(status) in CRASHES or not self.after


class _Text:
    """What a process wrote, in parts."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = plain(lines)
        found = [(first, end) for is_trace, first, end in split(lines) if is_trace]
        # a message ends where an empty line does, or the program wrote on: that is not to be told apart
        inside = {number for first, end in found for number in range(first, self._behind(first, end))}
        self.outside = [(n, line) for n, line in enumerate(self.lines) if line.strip() and n not in inside]
        self.blocks = [self._block(first, end, lines) for first, end in found]

    def _behind(self, first: int, end: int) -> int:
        """Returns the number of the line behind the exception's, and behind what it wraps."""
        exception = exception_of("\n".join(self.lines[first:end])).split("\n")
        nested = max((n for n, line in enumerate(exception) if HEADER[:-1] in line), default=-1)
        ends = (n for n, line in enumerate(exception) if n > nested and not line.startswith((" ", "\t")))
        return end - len(exception) + next(ends, len(exception) - 1) + 1

    def _block(self, first: int, end: int, raw: Sequence[str]) -> _Block:
        trace, behind = "\n".join(self.lines[first:end]), self._behind(first, end)
        before = {_NUMBER.sub("#", line) for n, line in self.outside if n < first}
        after = [line for n, line in self.outside if n >= behind and not _ASIDE.match(line)]
        goes_on = any(_GOES_ON.search(line) or _NUMBER.sub("#", line) in before for line in after)
        above = next((line for line in reversed(self.lines[:first]) if line.strip()), "")
        return _Block(trace, behind, above, raw[first] != self.lines[first], parts_of(trace), after, goes_on)

    def uncaught(self, status: int | None) -> _Block | None:
        """Returns the traceback that the process ended with."""
        own = [block for block in self.blocks if block.is_own]
        own = [block for block in own if not block.of_launcher] or own
        others = [block for block in self.blocks if _THREAD.match(block.above) or _CHILD.match(block.above)]
        threads = [block for block in others if _THREAD.match(block.above)]
        if own and own[-1].ends(status):
            waits = _WAITS.match(_judged(own[-1].parts[-1]))
            other = next((block for block in reversed(others) if block.number < own[-1].number), None)
            return other if waits and other is not None else own[-1]
        last = threads[-1] if threads and threads[-1] is self.blocks[-1] else None
        return last if last is not None and not last.after and status in FAILED else None

    # -- last words ---------------------------------------------------------------------------------------------
    def last_words(self, status: int | None) -> Cause:
        """Returns what native code, a shell, an interpreter or sys.exit() wrote last."""
        if signal_of(status) and signal_of(status) not in CRASHES:
            return Cause()
        lines = [line for _, line in self.outside]
        found, behind = list[str](), list[str]()
        for n, line in reversed(list(enumerate(lines))[-LAST_LINES - NCCL_LINES :]):
            if len(behind) > LAST_LINES or (behind and status is not None and 1 < status < 128):
                break
            if _FATAL.match(line) and not _GOES_ON.search(line) and not re.match(r".*Warning: ", line):
                before = {_NUMBER.sub("#", line) for line in lines[:n]}
                if any(_GOES_ON.search(it) or _NUMBER.sub("#", it) in before for it in behind):
                    break
                # an argument parser says what it knows before
                found.append("\n".join(lines[max(0, n - LAST_LINES) : n + 1]) if ": error: " in line else line)
            elif not _ASIDE.match(line):
                behind.append(line)
        if found:
            hint = next(filter(None, (first_match(HINTS, self.with_warnings(it)) for it in found)), None)
            return _cause(found[0].rpartition("\n")[2].strip(), None, hint)
        last = self.lines[self.outside[-1][0]] if self.outside else ""
        if status != 1 or not last or _ASIDE.match(last) or _PROGRESS.match(last) or _GOES_ON.search(last):
            return Cause()
        shapes = [_NUMBER.sub("#", line) for line in lines]
        why = last.strip() if shapes.count(shapes[-1]) == 1 else None
        return _cause(why, None, first_match(HINTS, last) if why else None)

    def with_warnings(self, text: str) -> str:
        """Returns it with what NCCL, or the store, warned of before, where it is theirs."""
        sign = _NCCL if "NCCL" in text else _UNRESOLVED if "client socket" in text else None
        warned = [line for line in self.lines[-NCCL_LINES:] if sign is not None and sign.search(line)]
        return "\n".join([text, *warned])


def _judged(part: Part) -> str:
    """Returns what rules are matched with."""
    return f"{part.exception}\nraised in {part.file}"


def _of_traceback(block: _Block, text: _Text) -> Cause:
    """Returns the cause that a traceback tells of: of those that are chained the root, unless it says nothing."""
    parts = list(block.parts)
    hints = [first_match(HINTS, text.with_warnings(_judged(part))) for part in parts]

    def is_answer(n: int) -> bool:
        hint = hints[n]
        return _OF_A_STOP.match(parts[n].exception) is not None or (hint is not None and hint.collateral)

    last = len(parts) - 1
    # what is raised as one cleans up, while others go, too, is the answer to what was raised before
    while last and is_answer(last) and not is_answer(last - 1) and not parts[last - 1].root.startswith("ImportError"):
        last -= 1
    first = last
    while first and parts[first].translates(parts[first - 1]):
        first -= 1
    chain = range(first, last + 1)
    root = parts[next((n for n in chain if parts[n].has_message), last)]
    hint = next((hints[n] for n in chain if hints[n]), None)
    again = parts[last].root
    why = root.root if root is parts[last] or root.root == again else f"{root.root}, raised again as {again}"
    thread = _THREAD.match(block.above)
    shown = "\n".join(block.trace.split("\n")[-SHOWN_LINES:])
    return _cause(why + (f", in {thread[1]}" if thread else ""), shown, hint, not is_answer(last))


def _cause(why: str | None, trace: str | None, hint: Hint | None, own: bool = False) -> Cause:
    if hint is None:
        return Cause(why, trace, own=own)
    return Cause(why, trace, hint.remedy, hint.collateral, own and not hint.collateral, hint.unfit)
