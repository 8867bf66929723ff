"""Decides what a stream may show, alone of all modules; draws the lines at the bottom of a terminal that are drawn
over."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import threading
import traceback
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from fleet.background import background
from fleet.errors import LimitError

if TYPE_CHECKING:
    from typing_extensions import Self

_STYLE = re.compile(r"\x1b\[[\d;]*m")
POLL_SECONDS = 0.2
TICK_SECONDS = 0.1
NOTE_SECONDS = 1
EDGE = 3  # cells that the last live line leaves free: a Ctrl-C that is typed shows as ^C after it


def interactive(stream: Any) -> bool:
    """A terminal, whatever it can do: a user looks at it, and must not be shown control characters of others."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _dumb() -> bool:
    return os.environ.get("TERM", "") in ("", "dumb", "unknown")


def colored(stream: Any) -> bool:
    """Is true where colours reach it: see no-color.org; some terminals know none."""
    return interactive(stream) and not _dumb() and not os.environ.get("NO_COLOR")


def live(stream: Any) -> bool:
    """Is true where lines may be drawn over. The log of a CI job keeps every state of them, even where it is a
    terminal."""
    return interactive(stream) and not _dumb() and os.environ.get("CI", "").lower() in ("", "0", "false")


def width(stream: Any) -> int | None:
    """Cells of a line; None where no terminal limits it."""
    return size(stream)[0] if interactive(stream) else None


def size(stream: Any) -> tuple[int, int]:
    """(columns, rows); $COLUMNS and $LINES win, as everywhere."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = rows = 0
    from_env = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    columns, rows = (int(a) if a.isdecimal() and int(a) else n for a, n in zip(from_env, (columns, rows), strict=True))
    return columns or 80, rows or 24


def cells(text: str) -> int:
    """Columns that a text takes: two for a CJK letter, none for a combining accent or a colour."""
    if "\x1b" in text:
        text = _STYLE.sub("", text)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, limit: int, end: str = "") -> str:
    """The text in at most `limit` cells; `end` marks where something was cut off."""
    if cells(text) <= limit:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, limit - cells(end))).rstrip() + end


def pad(text: str, size: int, *, right: bool = False) -> str:
    """The text with blanks to `size` cells."""
    blanks = " " * (size - cells(text))
    return blanks + text if right else text + blanks


class _Bottom:
    """The live lines at the bottom of stderr. Every writer to the terminal writes inside `aside`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.shown: list[str] = []
        self.held = 0
        self.noted = False

    def erasure(self) -> str:
        """From where the first of them begins: a terminal that was made narrower has broken them again."""
        columns = size(sys.stderr)[0]
        rows = sum(max(1, -(-cells(line) // columns)) for line in self.shown)
        # row by row: tmux keeps what \x1b[J takes from its first row on as if it had scrolled off
        return "\r\x1b[2K" + "\x1b[A\x1b[2K" * (rows - 1) if self.shown else ""


_bottom = _Bottom()


def draw(lines: Sequence[str]) -> None:
    """Put these in the place of the live lines; none takes them away. They are cut so that no line wraps and all of
    them are on the screen: what has scrolled off cannot be drawn over."""
    columns, rows = size(sys.stderr)
    if len(lines) >= rows:
        lines = [*lines[: rows - 2], f"... and {len(lines) - rows + 2} more"]
    ends = [columns - 1] * (len(lines) - 1) + [columns - EDGE]
    fitting, bottom = [cut(line.expandtabs(), end) for line, end in zip(lines, ends, strict=bool(lines))], _bottom
    with bottom.lock:
        if not bottom.held and fitting != bottom.shown:
            # at once, so that it does not flicker; no newline after the last: it could scroll
            sys.stderr.write(bottom.erasure() + "\n".join(fitting))
            sys.stderr.flush()
            bottom.shown = fitting


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """The live lines are gone while this writes; they come back below it."""
    bottom = _bottom
    with bottom.lock:
        draw([])
        bottom.held += 1
        try:
            yield
        finally:
            bottom.held -= 1


@contextlib.contextmanager
def prompt() -> Iterator[None]:
    """A question is on the terminal: the live lines are gone until it is answered, and no thread waits for that."""
    bottom = _bottom
    with aside():
        bottom.held += 1
    try:
        yield
    finally:
        with bottom.lock:
            bottom.held -= 1


def leave(code: int) -> NoReturn:
    """Ends fleet at once, from a signal handler, too; no live line stays."""
    _bottom.held += 1
    note("")
    os._exit(code)


def note(text: str) -> None:
    """A line, or only the live lines' end, from a signal handler: in a thread of its own, since a terminal that no
    process drains would hold the handler up for good, and not for NOTE_SECONDS; without a lock and not through
    sys.stderr, which the main thread may be writing to. Waited for, so that it comes before the next one, and before
    fleet ends."""
    erasure, _bottom.shown, _bottom.noted = _bottom.erasure(), [], True
    data = f"{erasure}{text}{chr(10) * bool(text)}".encode()
    with contextlib.suppress(LimitError):  # what is not shown must not keep a signal from its work
        futures.wait([background("say", partial(os.write, 2, data))], NOTE_SECONDS)


def block() -> None:
    """Have a slow reader of our output waited for, and no line lost: an ssh, or another program that the same pipe
    was given to, may have made it one that takes nothing when it is full."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            os.set_blocking(fd, True)


def stopped() -> bool:
    """Is true where a reader that takes nothing is given up soon: a terminal that is stopped, and any reader after an
    interrupt. A pager or a busy program at the other end of a pipe mostly continues."""
    terminals = [fd for fd, stream in ((1, sys.stdout), (2, sys.stderr)) if interactive(stream)]
    return _bottom.noted or len(select.select([], terminals, [], 0)[1]) < len(terminals)


def give_up() -> None:
    """The terminal is stopped for good, and a thread hangs in writing to it: the locks of our files must not keep fleet
    from ending."""
    global _bottom
    _bottom = _Bottom()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if not select.select([], [2], [], 0)[1]:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def report_fault(fault: Exception) -> None:
    """Once, of a fault in what only shows: the work goes on."""
    text = "".join(traceback.format_exception_only(fault)).strip().splitlines()[-1]
    with aside():
        sys.stderr.write(f"warning: a fault in what fleet shows here: {text}; the work goes on. Please report it\n")
        sys.stderr.flush()


class Ticking:
    """Something live: `tick` is called every TICK_SECONDS by a thread of its own, as long as it lasts, and the live
    lines are gone after it."""

    def __init__(self, on: bool = True) -> None:
        self._over, self.on = threading.Event(), on
        self._ticker = threading.Thread(target=self._run, name="live", daemon=True) if on else None

    def __enter__(self) -> Self:
        if self._ticker is not None:
            self._ticker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()

    def tick(self) -> None:
        """Draw what is to be seen now."""

    def _run(self) -> None:
        try:
            while not self._over.wait(TICK_SECONDS):
                self.tick()
        except OSError:  # the reader has gone
            return
        except Exception as fault:
            report_fault(fault)
        draw([])


# -- single keys while something runs ------------------------------------------------------------------------
def _in_foreground() -> bool:
    """Is true where we may touch the terminal of stdin: a process that does so in the background is stopped."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """The terminal of stdin is in the same mode afterwards, whatever became of the process that changed it."""
    before = termios.tcgetattr(0) if interactive(sys.stdin) else None
    try:
        yield
    finally:
        if before is not None and _in_foreground():
            termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def pressed(handlers: Mapping[bytes, Callable[[], object]]) -> Iterator[None]:
    """While it lasts, a key calls its handler, in a thread of its own; others do nothing. Ctrl-C is what it always is.
    Nothing of it where stdin is no terminal of ours."""
    if not interactive(sys.stdin) or not _in_foreground():
        yield
        return
    over, ending = os.pipe()

    def read() -> None:
        with contextlib.suppress(OSError):
            while over not in select.select([0, over], [], [])[0]:
                if not _in_foreground():
                    select.select([over], [], [], POLL_SECONDS)
                elif key := os.read(0, 1):
                    handlers.get(key, lambda: None)()
                else:
                    return

    with kept():
        tty.setcbreak(0, termios.TCSADRAIN)
        reader = threading.Thread(target=read, name="keys", daemon=True)
        reader.start()
        try:
            yield
        finally:
            os.close(ending)
            reader.join(2 * POLL_SECONDS)
            if not reader.is_alive():  # else it still looks there, and the number may soon be another file's
                os.close(over)
