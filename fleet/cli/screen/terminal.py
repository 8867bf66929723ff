"""Decides what a stream may show (colours, live lines); no other module decides it. Draws the live lines at the bottom
of a terminal."""

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
POLL_SECONDS = 0.2  # between two looks whether fleet is in the foreground again
TICK_SECONDS = 0.1  # between two calls of Ticking.tick()
NOTE_SECONDS = 1  # how long note() waits until its line is written
EDGE = 3  # cells that the last live line leaves free: a typed Ctrl-C shows as ^C there


def interactive(stream: Any) -> bool:
    """Returns whether the stream is a terminal, of any kind. A user reads a terminal, so control characters in the
    output of other programs must not reach it."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _dumb() -> bool:
    return os.environ.get("TERM", "") in ("", "dumb", "unknown")


def colored(stream: Any) -> bool:
    """Returns whether the stream shows colours: it is a terminal that can, and NO_COLOR is not set (no-color.org)."""
    return interactive(stream) and not _dumb() and not os.environ.get("NO_COLOR")


def live(stream: Any) -> bool:
    """Returns whether lines may be redrawn on the stream. In a CI job they may not, even if the stream is a terminal:
    the job's log would keep every state of a line."""
    return interactive(stream) and not _dumb() and os.environ.get("CI", "").lower() in ("", "0", "false")


def width(stream: Any) -> int | None:
    """Returns how many cells (columns) a line of the terminal has; None if the stream is no terminal."""
    return size(stream)[0] if interactive(stream) else None


def size(stream: Any) -> tuple[int, int]:
    """Returns (columns, rows) of the terminal. $COLUMNS and $LINES win, as in other programs; 80 and 24 if neither is
    known."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = rows = 0
    from_env = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    columns, rows = (int(a) if a.isdecimal() and int(a) else n for a, n in zip(from_env, (columns, rows), strict=True))
    return columns or 80, rows or 24


def cells(text: str) -> int:
    """Returns the columns that a text takes: two for a CJK letter, none for a combining accent or a colour."""
    if "\x1b" in text:
        text = _STYLE.sub("", text)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, limit: int, end: str = "") -> str:
    """Returns the text in at most `limit` cells; `end` marks a cut."""
    if cells(text) <= limit:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, limit - cells(end))).rstrip() + end


def pad(text: str, size: int, *, right: bool = False) -> str:
    """Returns the text, filled with blanks to `size` cells; with `right`, the blanks come first."""
    blanks = " " * (size - cells(text))
    return blanks + text if right else text + blanks


class _Bottom:
    """Holds the live lines at the bottom of stderr. Everything that writes to the terminal writes inside `aside`.
    shown: the live lines that are on the terminal. held: how many blocks now forbid live lines. noted: a signal handler
    wrote a line."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.shown: list[str] = []
        self.held = 0
        self.noted = False

    def erasure(self) -> str:
        """Returns the control characters that erase the live lines. They may take more rows than when they were drawn:
        a terminal that became narrower wraps them."""
        columns = size(sys.stderr)[0]
        rows = sum(max(1, -(-cells(line) // columns)) for line in self.shown)
        # row by row: \x1b[J from the first row on would put the lines into tmux's history
        return "\r\x1b[2K" + "\x1b[A\x1b[2K" * (rows - 1) if self.shown else ""


_bottom = _Bottom()


def draw(lines: Sequence[str]) -> None:
    """Replaces the live lines by `lines`; an empty list removes them. Each line is cut so that it does not wrap. Lines
    that do not fit on the screen are left out: a line that scrolled off cannot be redrawn."""
    columns, rows = size(sys.stderr)
    if len(lines) >= rows:
        lines = [*lines[: rows - 2], f"... and {len(lines) - rows + 2} more"]
    ends = [columns - 1] * (len(lines) - 1) + [columns - EDGE]
    fitting, bottom = [cut(line.expandtabs(), end) for line, end in zip(lines, ends, strict=bool(lines))], _bottom
    with bottom.lock:
        if not bottom.held and fitting != bottom.shown:
            # one write, so that nothing flickers; no newline at the end, because it could scroll the screen
            sys.stderr.write(bottom.erasure() + "\n".join(fitting))
            sys.stderr.flush()
            bottom.shown = fitting


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Removes the live lines while the block writes; the next draw() shows them below what the block wrote."""
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
    """Removes the live lines while a question is on the terminal. The lock is free meanwhile, so no other thread waits
    until the user answers."""
    bottom = _bottom
    with aside():
        bottom.held += 1
    try:
        yield
    finally:
        with bottom.lock:
            bottom.held -= 1


def leave(code: int) -> NoReturn:
    """Removes the live lines and ends fleet at once. A signal handler may call it."""
    _bottom.held += 1
    note("")
    os._exit(code)


def note(text: str) -> None:
    """Writes a line from a signal handler and removes the live lines; an empty text only removes them. A separate
    thread writes it, because a terminal that no process reads would block the handler forever. note() takes no lock and
    does not use sys.stderr, which the main thread may be writing to. note() waits for NOTE_SECONDS at most, so that its
    line is written before the next note, and before fleet ends."""
    erasure, _bottom.shown, _bottom.noted = _bottom.erasure(), [], True
    data = f"{erasure}{text}{chr(10) * bool(text)}".encode()
    with contextlib.suppress(LimitError):  # if no thread can start, the signal still does its work
        futures.wait([background("say", partial(os.write, 2, data))], NOTE_SECONDS)


def block() -> None:
    """Makes stdout and stderr blocking, so that a slow reader loses no line. ssh, or another program that has the same
    pipe, may have made them non-blocking."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            os.set_blocking(fd, True)


def stopped() -> bool:
    """Returns whether fleet soon gives up a reader of its output that reads nothing. It does so for a stopped terminal,
    and for any reader after an interrupt. Otherwise it waits longer: a pager or a busy program at the other end of a
    pipe mostly reads on."""
    terminals = [fd for fd, stream in ((1, sys.stdout), (2, sys.stderr)) if interactive(stream)]
    return _bottom.noted or len(select.select([], terminals, [], 0)[1]) < len(terminals)


def give_up() -> None:
    """Replaces stdout, and stderr if it accepts no output, while a thread hangs in a write to a stopped terminal. That
    thread holds the locks of the streams, which would keep fleet from ending."""
    global _bottom
    _bottom = _Bottom()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if not select.select([], [2], [], 0)[1]:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def report_fault(fault: Exception) -> None:
    """Reports a fault in code that only shows something, so the work goes on."""
    text = "".join(traceback.format_exception_only(fault)).strip().splitlines()[-1]
    with aside():
        sys.stderr.write(f"warning: a fault in what fleet shows here: {text}; the work goes on. Please report it\n")
        sys.stderr.flush()


class Ticking:
    """Draws a live display within the block: a separate thread calls `tick` every TICK_SECONDS, and removes the live
    lines at the end. If `on` is False, no thread starts."""

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
        """Draws the current state."""

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
    """Returns whether we may change the terminal of stdin: a process in the background would be stopped."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restores the mode of stdin's terminal after the block, even if a process that changed the mode did not end in
    order."""
    before = termios.tcgetattr(0) if interactive(sys.stdin) else None
    try:
        yield
    finally:
        if before is not None and _in_foreground():
            termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def pressed(handlers: Mapping[bytes, Callable[[], object]]) -> Iterator[None]:
    """Calls a key's handler, in a separate thread, within the block. Other keys do nothing; Ctrl-C is not changed. No
    key is read if stdin is no terminal, or if fleet is in the background."""
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
            if not reader.is_alive():  # a reader that still runs uses this fd; another file could get its number
                os.close(over)
