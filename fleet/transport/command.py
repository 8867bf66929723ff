"""Runs one command on a host, which needs no python. command.sh starts the command and reports how it ended. It also
ends the command when the head requests the end, falls silent or is gone.

The reports of command.sh lie between bytes of the command's own output. Each report follows a token that the command
cannot know.
"""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from shlex import quote

from fleet.background import background
from fleet.errors import ConnectError, DeadlineError, HostFailed, ProtocolError
from fleet.protocol.environment import running
from fleet.protocol.frames import PREAMBLE
from fleet.transport.base import PING_SECONDS, POLL_SECONDS, Session, Watchdog
from fleet.transport.frames import NOISE_LIMIT
from fleet.transport.input import Feed
from fleet.transport.shell import EATEN, Conversation, foreign

NODE_SILENCE_SECONDS = 60  # a node ends the command if the head sends nothing for so long
STUCK_SECONDS = 2.0  # wait for the command's status if some of its processes could not be ended
# variables that bash or dash does not let a script set, or not to every value
_OF_BASH = (
    "BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO BASH_SOURCE "
    "BASH_SUBSHELL BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD LINENO OPTIND PPID "
    "RANDOM SECONDS SHELLOPTS SRANDOM UID _"
)
READONLY = frozenset(_OF_BASH.split())
LEFT_MOST = 20  # most processes that are reported as left running
STATUS = re.compile(rb"exit (\d{1,3})")
LEFT = re.compile(rb"left (\d{1,10}) (.*)", re.DOTALL)
INPUT = re.compile(rb"input (\d{1,10})")
# $1: the process that has a pipe as its stdin and waits to become the command
_PASS_ON = f'IFS= read -r x; [ "$x" = "fleet begins" ] || exit {EATEN}; exec >"/proc/$1/fd/0"; echo; cat; exit $?'


@cache
def command_line() -> str:
    """Returns the command that starts command.sh on every host."""
    text = (files("fleet") / "transport/command.sh").read_text("ascii")
    return f"exec sh -c {quote(' '.join(line for line in text.splitlines() if line[:1] != '#'))} fleet"


@dataclass(frozen=True)
class CommandSpec:
    """Describes a command: an argv, or a line for the user's shell. activate: shell code that runs before the command.
    interpreter: (path, folder) of the training interpreter in whose environment the command runs; the path is relative
    to the folder."""

    argv: Sequence[str] | None
    line: str | None
    env: Mapping[str, str]
    activate: str | None = None
    interpreter: tuple[str, str] | None = None

    def script(self, key: str, mark: str, grace: float, *, fed: bool = False) -> bytes:
        """Returns the two lines to send. The first is the shell code. command.sh reads the second one in its place if
        the login shell has read the first. key: the token before each report. mark: see Command. fed: the head also
        sends the command's standard input."""
        argv = (
            [*map(quoted, self.argv)]
            if self.argv is not None
            else ['"${SHELL:-/bin/sh}"', "-c", quoted(self.line or "")]
        )
        # the line is the user's own shell code; argv follows it untouched, as positional parameters
        if self.interpreter:
            argv = [*map(quoted, (*running(self.activate, needed=True), *self.interpreter)), *argv]
        elif self.activate:
            argv = ["bash", "-c", quoted(self.activate + '\nexec "$@"'), "bash", *argv]
        if held := sorted(READONLY & set(self.env)):
            argv = ["env", *(quoted(f"{name}={self.env[name]}") for name in held), *argv]
        given = [f"{name}={quoted(value)}" for name, value in self.env.items() if name not in READONLY]
        text = (
            f"fleet_key={key} fleet_mark={mark} fleet_grace={round(grace * 10)} fleet_silence={NODE_SILENCE_SECONDS} "
            f"fleet_input={fed:d}; "
            f"given() {{ export {' '.join([*given, 'FLEET_EXEC_ID=$fleet_mark'])}; }}; set -- {' '.join(argv)}"
        )
        return os.fsencode(f"fleet begins {one_line(text)}\nfleet\n")


def quoted(text: str) -> str:
    """Returns a token quoted for sh, within the text of one_line()."""
    return "'" + text.replace("'", "'\\''").replace("\n", "'\"$fleet_nl\"'") + "'"


def one_line(text: str) -> str:
    """Returns quoted arguments as one line of sh. It defines $fleet_nl only if an argument holds a line end, because
    the definition starts a process."""
    return 'fleet_nl=$(printf "\\nx"); fleet_nl=${fleet_nl%x}; ' + text if '"$fleet_nl"' in text else text


class _Stream:
    """Separates one output stream of a node into the command's bytes and the reports of command.sh. rest: bytes that
    may be either."""

    def __init__(self, key: bytes) -> None:
        self._key, self.rest = key, b""
        self.started = self.ended = False

    def feed(self, data: bytes, on_message: Callable[[bytes], None]) -> Iterator[bytes]:
        """Yields the command's bytes. Calls `on_message` for each report between them."""
        data = self.rest + data
        if not self.started:
            _, begun, rest = data.partition(PREAMBLE)
            if not begun:
                self.rest = data
                return
            self.started, data = True, rest
        while (at := data.find(self._key)) >= 0 and (end := data.find(b"\n", at)) >= 0:
            if at:
                yield data[:at]
            message, data = data[at + len(self._key) : end], data[end + 1 :]
            on_message(message)
            if message.startswith(b"exit "):  # later bytes come from processes that the command left running
                self.ended = True
                return
        if at < 0:  # the data may end with the beginning of the token
            at = data.rfind(b"\0", -len(self._key))
            if at < 0 or not self._key.startswith(data[at:]):
                at = len(data)
        if at:
            yield data[:at]
        self.rest = data[at:]


class Command(Conversation):
    """Controls a running command. At the end of a `with` block, the command is ended on the node.

    mark: the value of FLEET_EXEC_ID in the environment of the command's processes. grace: seconds between SIGTERM and
    SIGKILL. feed: the command's standard input; None if it is empty. After output(), `status` is the exit status (128+n
    for signal n), or None if the command could not be ended. `left` has (pid, command line) of each process that could
    not be ended; it is None if the command ended by itself."""

    def __init__(self, session: Session, spec: CommandSpec, mark: str, grace: float, feed: Feed | None = None) -> None:
        super().__init__(session, session.start(command_line()))
        self.status: int | None = None
        self.left: list[tuple[int, str]] | None = None
        self._left_reported = list[tuple[int, str]]()
        self._feeds, self._input = [feed] if feed is not None else [], Future[None]()
        key = "K" + uuid.uuid4().hex
        self._streams = (_Stream(b"\0" + key.encode()), _Stream(b"\0" + key.encode()))
        self.send_bytes(spec.script(key, mark, grace, fed=feed is not None))

    def end(self) -> None:
        """Requests to end the command. Any thread may call it."""
        self.send_bytes(b"end\n")

    def _send_input(self, feed: Feed, pid: str) -> None:
        """Sends the command's standard input over a separate channel, so that unread input delays no heartbeat. pid:
        the process on the node that waits to become the command."""
        self.send_bytes(f"hold {pid}\n".encode())
        try:
            channel = self.session.start(f"exec sh -c {quote(_PASS_ON)} fleet {pid}")
            with suppress(ConnectError):  # its process may have ended already: its status shows why
                channel.send(b"fleet begins\n")
                for data in feed.chunks():
                    channel.send(data, patience=math.inf)
                channel.send_eof()
            while (status := channel.wait(POLL_SECONDS)) is None and not feed.over:
                self.clock.sleep(POLL_SECONDS)
            if status == 0 and not feed.over:
                self.send_bytes(b"eof\n")
            elif status not in (0, None, 141):  # 141: the command has closed its input, or is gone
                raise HostFailed(f"its standard input broke off there: exit status {status}", host=self.host.name)
        finally:
            feed.over = True

    def output(self, *, silence: float, timeout: float | None, patience: float) -> Iterator[tuple[int, bytes]]:
        """Yields (0 for stdout or 1 for stderr, bytes) until the command has ended.

        silence: seconds without a byte after which the host is lost. timeout: seconds that the command may run.
        patience: seconds that the command may take to end after that. Raises ConnectError (lost, protocol),
        DeadlineError, HostFailed.
        """
        begun = pinged = self.clock.monotonic()
        quiet, late = Watchdog(clock=self.clock), False
        while self.left is None:
            if self._input.done():
                self._input.result()
            received = self._channel.recv_both(POLL_SECONDS if timeout is None else min(POLL_SECONDS, timeout / 4))
            now = self.clock.monotonic()
            if timeout is not None and now - begun >= timeout and not late:
                late = True
                self.end()
            elif timeout is not None and now - begun >= timeout + patience:
                raise DeadlineError("ran out of its time", host=self.host.name)
            elif now - pinged >= PING_SECONDS:
                pinged = now
                self.send_bytes(b"ping\n")
            if received is None:
                if quiet.seconds() >= silence:
                    stream = self._streams[0]
                    if (error := self._silent(silence, stream.started, stream.rest)) is not None:
                        raise error
                    self._ended()
                continue
            if not any(received):
                return self._ended()
            yield from self._pieces(received)
            if self._streams[0].ended and self._streams[1].ended:
                return
            if self._streams[0].started:  # earlier bytes are no proof: a forced `cat` returns what fleet sent
                quiet.received()
        # the status follows the report of the end; it may never come if some process could not be ended
        until = self.clock.monotonic() + (STUCK_SECONDS if self.left else patience)
        while not (self._streams[0].ended and self._streams[1].ended) and self.clock.monotonic() < until:
            received = self._channel.recv_both(POLL_SECONDS)
            if received is not None and not any(received):
                return
            yield from self._pieces(received or (b"", b""))

    def _pieces(self, received: tuple[bytes, bytes]) -> Iterator[tuple[int, bytes]]:
        for number, (stream, data) in enumerate(zip(self._streams, received, strict=True)):
            for piece in stream.feed(data, self._handle) if data and not stream.ended else ():
                yield number, piece
            if len(stream.rest) > NOISE_LIMIT:
                raise foreign(self.host.name, stream.rest)

    def _handle(self, message: bytes) -> None:
        if (exit := STATUS.fullmatch(message)) and int(exit[1]) <= 255:
            self.status = int(exit[1])
        elif message == b"ended":
            self.left = self._left_reported
        elif self._feeds and (found := INPUT.fullmatch(message)):
            send_input = partial(self._send_input, self._feeds.pop(), found[1].decode())
            self._input = background(f"input {self.host.name}", send_input)
        elif found := LEFT.fullmatch(message):
            self._left_reported = [*self._left_reported, (int(found[1]), found[2].decode("utf-8", "replace").strip())][
                :LEFT_MOST
            ]
        elif message:
            raise ProtocolError(f"{message[:60]!r} where it reports on the command", self.host.name)

    def _ended(self) -> None:
        """Handles the end of both outputs. Raises an error unless the end of the command was reported."""
        out, err = self._streams
        if out.ended:  # a startup file has closed stderr
            return
        status = self._status(out.started, err.rest or out.rest)
        if status < 128:
            raise HostFailed(f"the shell around the command ended with {status} before it", host=self.host.name)
        self.status = status  # the command sent this signal to all that it could reach
