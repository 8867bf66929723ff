"""Runs the leader: the process that leads a run. The typed process is the one that the user's shell started; it forks
the leader. It stays with the terminal, passes signals on to the leader, and ends with the leader's exit code. If it is
killed or gets SIGHUP, it requests nothing more, and the leader sees that it has gone. So no process ever hands a run
over to another.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import click

from fleet.background import unattended
from fleet.cli.screen import terminal
from fleet.cli.screen.output import inform
from fleet.own import private
from fleet.protocol.codes import FOR_RANKS

Handler = Callable[[int, Any], object]
PASSED_ON = (signal.SIGINT, signal.SIGTERM, *FOR_RANKS)
OF_TERMINAL = (*PASSED_ON, signal.SIGHUP, signal.SIGTSTP)  # a terminal sends these to its whole process group
WAKE = signal.SIGCONT

_link: tuple[int, int] | None = None  # in the leader: pipes from the typed process, and to it
_passed_on: list[int] = []  # signals from the typed process, not handled yet; SIGHUP: it has gone
_handlers: dict[int, Handler] = {}


@contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Handles these signals within the block. In a leader it handles those that are passed on."""
    swap = _swap if _link is not None else signal.signal
    before = {number: swap(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            swap(number, handler)


def _swap(number: int, handler: Any) -> Any:
    before, _handlers[number] = _handlers.get(number, _end), handler
    return before


def begin() -> None:
    """Forks, and goes on as the leader. In the typed process it raises click's Exit with the leader's exit code, after
    the leader has ended or left the terminal."""
    global _link
    sys.stdout.flush()
    sys.stderr.flush()
    (requests, asks), (answer, answers) = os.pipe(), os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # a signal in a callback of fork would be lost
    pid = os.fork()
    for fd in (requests, answers) if pid else (asks, answer):
        os.close(fd)
    if pid:
        raise click.exceptions.Exit(_code_of(pid, asks, answer))
    _link, _handlers[signal.SIGINT] = (requests, answers), signal.default_int_handler
    for number in OF_TERMINAL:  # the typed process gets them, too, and acts on them: here they do nothing
        if signal.getsignal(number) is not signal.SIG_IGN:  # programs that we start inherit SIG_IGN
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    signal.signal(WAKE, _handle)
    unattended("typed", partial(_listen, _link))


def leads() -> bool:
    """Returns whether this is a leader that a terminal waits for."""
    return _link is not None


def stay(code: int, log: str) -> None:
    """Ends the typed process with this code. The leader goes on without a terminal. log: the file for its errors."""
    global _link
    link, _link = _link, None
    assert link is not None
    with suppress(OSError):
        sys.stdout.flush()
    leave_terminal(log)
    with suppress(OSError):
        os.write(link[1], bytes([code]))
    os.close(link[1])
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave_terminal(log: str = os.devnull) -> None:
    """Replaces the standard streams: the terminal is neither read nor written any more. A signal handler may call it,
    so it flushes no stream that the main thread may be writing to."""
    with open(os.devnull, "r+b") as null, suppress(OSError):
        for fd in (0, 1, 2):
            os.dup2(null.fileno(), fd)
        with open(log, "ab", opener=private) as errors:
            os.dup2(errors.fileno(), 2)


def _listen(link: tuple[int, int]) -> None:
    received = b"-"
    while received:
        received = os.read(link[0], 16)
        if _link is not link:
            return
        _passed_on.extend(received or [signal.SIGHUP])
        signal.pthread_kill(threading.main_thread().ident or 0, WAKE)


def _handle(signum: int, frame: Any) -> None:
    while _passed_on:
        number = _passed_on.pop(0)
        _handlers.get(number, _end)(number, frame)


def _end(signum: int, frame: Any) -> None:
    os._exit(128 + signum)


# -- in the typed process -------------------------------------------------------------------------------------
def _code_of(leader: int, asks: int, answer: int) -> int:
    """Returns the exit code of the leader, 0 to 255, or the code that it sent when it left the terminal."""

    def pass_on(signum: int, frame: Any) -> None:
        with suppress(OSError):
            os.write(asks, bytes([signum]))

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup fleet launch ... stays
        signal.signal(signal.SIGHUP, _end)
    with terminal.kept():
        if code := os.read(answer, 1):
            return code[0]
        status = os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])
    if status < 0:
        inform(f"error: the process that led the run was killed, by signal {-status}", "fleet attach")
    return status if status >= 0 else 128 - status
