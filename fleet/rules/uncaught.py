"""What a process that failed died of, by the end of what it wrote: a line that was handled decides nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet.rules.tracebacks import DIRECT_CAUSE, exception_of, launchers, parts_of, plain, split

NCCL_LINES = 60
LAST_LINES = 20  # a process that goes on after an error writes more
# what others write while a process ends: torch's and Python's warnings, wandb's summary, launchers
_ASIDE = re.compile(
    r"\s*$|(\[rank\d+\]:)?\[W\d|.*\bWARNING\b|.*Warning: |wandb: |\[\d{4}-\d\d-\d\d .*\] torch\.distributed\.run"
)
_OF_OTHERS = re.compile(r"Exception ignored in|Exception in thread |Exception in .*threading")
# a process's last lines where there is no traceback: a shell's, an interpreter's, an argument parser's, native code's
_FATAL = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::|$)|[\w./-]+: error: |Fatal Python error: |\s*what\(\): |"
    r"fleet: cannot start |(?:\S*/)?(?:ba|da|z|k|fi)?sh: |\S+: line \d+: |\S*python[\d.]*: |\S*numactl: |"
    r"\S+: error while loading shared libraries: |ERROR: Unexpected bus error|.* NCCL WARN |(?:\[rank\d+\]:)?\[E\d+ |"
    r"(?:Bus error|Segmentation fault|Killed)\b"
)
_NCCL = re.compile(r" NCCL WARN ")
_GOES_ON = re.compile(
    r"(?i)\b(?:re-?try(?:ing)?|trying again|attempt \d+|skipp(?:ed|ing)|ignor(?:ed|ing)|falling back)\b"
)


def uncaught(text: str, status: int | None = None) -> str | None:
    """The traceback that the process ended with, and those that it is chained to; None where it ended otherwise.
    status: its exit code: a Python that an exception ends has 1, unless native code ends it before."""
    if status is not None and 1 < status < 128:
        return None
    lines = text.splitlines()
    found = [(first, end) for is_trace, first, end in split(lines) if is_trace]
    traces = [
        (end, "\n".join(plain(lines[first:end])), plain(lines[max(0, first - 1) : first])) for first, end in found
    ]
    traces = [it for it in traces if not launchers(it[1])] or traces
    own = [it for it in traces if not any(_OF_OTHERS.match(line) for line in it[2])] or traces
    if not own:
        return None
    end, trace, _ = own[-1]
    inside = {number for first, last in found for number in range(first, last)}
    behind = [lines[n] for n in range(end, len(lines)) if n not in inside and not _ASIDE.match(lines[n])]
    behind += [line for line in exception_of(trace).splitlines()[1:] if not line.startswith(" ")]  # or its message
    return trace if exception_of(trace) and len(behind) <= LAST_LINES else None


def deciding(text: str, status: int | None = None) -> Iterator[str]:
    """Of what a hint may be made, what says most first: the exceptions of the uncaught traceback, each with the file
    that raised it, else the last lines; with what NCCL warned of before where it is NCCL's."""
    lines = plain(text.splitlines())
    inside = {number for is_trace, first, end in split(lines) if is_trace for number in range(first, end)}
    last = [line for n, line in enumerate(lines) if line.strip() and n not in inside][-LAST_LINES:]
    warned = "".join(f"\n{line}" for line in lines[-NCCL_LINES:] if _NCCL.search(line))
    trace, order = uncaught(text, status), list[str]()
    if trace is not None:
        for part, follows in reversed(list(parts_of(trace))):
            # what an exception was raised from says more than it does; what it was raised in spite of says less
            order.insert(0 if follows == DIRECT_CAUSE else len(order), part)
    else:
        for n, line in reversed(list(enumerate(last))):
            if _FATAL.match(line) and not _ASIDE.match(line) and not _GOES_ON.search(line):
                # an argument parser says what it knows before
                order.append("\n".join(last[: n + 1]) if ": error: " in line else line)
    yield from (part + warned * ("NCCL" in part) for part in order)
