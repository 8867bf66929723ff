"""One command on a host, for which nothing but its sh is started: see command.sh, which outlives it there, ends it when
the head requests it, falls silent or is gone, and reports how it ended.

What it reports is amid the command's own output, after a token that the command cannot know.
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
from fleet.transport.base import PING_SECONDS, POLL_SECONDS, Session, Silence
from fleet.transport.frames import NOISE_LIMIT
from fleet.transport.input import Feed
from fleet.transport.shell import EATEN, Conversation, foreign

NODE_SILENCE_SECONDS = 60
STUCK_SECONDS = 2.0  # in which it is reported how the command ended, where other processes of it would not
# what bash (or dash) does not let anybody set, or not to any value
_OF_BASH = (
    "BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO BASH_SOURCE "
    "BASH_SUBSHELL BASH_VERSINFO DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD LINENO OPTIND PPID "
    "RANDOM SECONDS SHELLOPTS SRANDOM UID _"
)
READONLY = frozenset(_OF_BASH.split())
LEFT_MOST = 20
STATUS = re.compile(rb"exit (\d{1,3})")
LEFT = re.compile(rb"left (\d{1,10}) (.*)", re.DOTALL)
INPUT = re.compile(rb"input (\d{1,10})")
# $1: the process that waits with a pipe as its stdin, to become the command
_PASS_ON = f'IFS= read -r x; [ "$x" = "fleet begins" ] || exit {EATEN}; exec >"/proc/$1/fd/0"; echo; cat; exit $?'


@cache
def command_line() -> str:
    """Returns the command that starts command.sh on every host."""
    text = (files("fleet") / "transport/command.sh").read_text("ascii")
    return f"exec sh -c {quote(' '.join(line for line in text.splitlines() if line[:1] != '#'))} fleet"


@dataclass(frozen=True)
class Words:
    """Describes what is to run: an argv, or a line for the user's shell. activate: shell code in front of it. within:
    the training interpreter in whose environment it runs, and what its path is relative to; None for none."""

    argv: Sequence[str] | None
    line: str | None
    env: Mapping[str, str]
    activate: str | None = None
    within: tuple[str, str] | None = None

    def script(self, key: str, mark: str, grace: float, *, fed: bool = False) -> bytes:
        """Returns what the node is sent: one line of shell, and one that shows when the login shell took the first.
        fed: its standard input is sent after it."""
        argv = (
            [*map(word, self.argv)] if self.argv is not None else ['"${SHELL:-/bin/sh}"', "-c", word(self.line or "")]
        )
        # the line is the user's own shell code; argv follows it untouched, as positional parameters
        if self.within:
            argv = [*map(word, (*running(self.activate, needed=True), *self.within)), *argv]
        elif self.activate:
            argv = ["bash", "-c", word(self.activate + '\nexec "$@"'), "bash", *argv]
        if held := sorted(READONLY & set(self.env)):
            argv = ["env", *(word(f"{name}={self.env[name]}") for name in held), *argv]
        given = [f"{name}={word(value)}" for name, value in self.env.items() if name not in READONLY]
        text = (
            f"fleet_key={key} fleet_mark={mark} fleet_grace={round(grace * 10)} fleet_silence={NODE_SILENCE_SECONDS} "
            f"fleet_input={fed:d}; "
            f"given() {{ export {' '.join([*given, 'FLEET_EXEC_ID=$fleet_mark'])}; }}; set -- {' '.join(argv)}"
        )
        return os.fsencode(f"fleet begins {one_line(text)}\nfleet\n")


def word(text: str) -> str:
    """A token as sh reads it in what is one_line()."""
    return "'" + text.replace("'", "'\\''").replace("\n", "'\"$fleet_nl\"'") + "'"


def one_line(text: str) -> str:
    """A line of arguments, for an sh that reads it as one; line ends in them take a process."""
    return 'fleet_nl=$(printf "\\nx"); fleet_nl=${fleet_nl%x}; ' + text if '"$fleet_nl"' in text else text


class _Stream:
    """One output of a node: what the command prints, and what command.sh reports. rest: what is not distinguished
    yet."""

    def __init__(self, key: bytes) -> None:
        self._key, self.rest = key, b""
        self.started = self.ended = False

    def feed(self, data: bytes, tell: Callable[[bytes], None]) -> Iterator[bytes]:
        """Yields what the command printed; `tell` receives each message between."""
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
            tell(message)
            if message.startswith(b"exit "):  # what comes after it is not the command's, but of what it left running
                self.ended = True
                return
        if at < 0:  # the beginning of the token may be the end of what came
            at = data.rfind(b"\0", -len(self._key))
            if at < 0 or not self._key.startswith(data[at:]):
                at = len(data)
        if at:
            yield data[:at]
        self.rest = data[at:]


class Command(Conversation):
    """A running command. A context manager; leaving it ends the command on the node.

    mark: what its processes carry in their environment. grace: seconds between SIGTERM and SIGKILL. feed: what goes to
    its standard input, which is empty without.

    When output() is through: `status` as a shell reports it, 128+n for signal n; None where it could not be ended.
    `left`: pid and command line of each process that could not be ended then; None where it ended by itself."""

    def __init__(self, session: Session, words: Words, mark: str, grace: float, feed: Feed | None = None) -> None:
        super().__init__(session, session.start(command_line()))
        self.status: int | None = None
        self.left: list[tuple[int, str]] | None = None
        self._told = list[tuple[int, str]]()
        self._feeds, self._input = [feed] if feed is not None else [], Future[None]()
        key = "K" + uuid.uuid4().hex
        self._streams = (_Stream(b"\0" + key.encode()), _Stream(b"\0" + key.encode()))
        self.send_bytes(words.script(key, mark, grace, fed=feed is not None))

    def end(self) -> None:
        """Have it ended there. From any thread."""
        self.send_bytes(b"end\n")

    def _bring(self, feed: Feed, pid: str) -> None:
        """Send its standard input, over a channel of its own: what a command does not read must not hold up the
        answers that show the host alive."""
        self.send_bytes(f"hold {pid}\n".encode())
        try:
            channel = self.session.start(f"exec sh -c {quote(_PASS_ON)} fleet {pid}")
            with suppress(ConnectError):  # it may have ended already: its status shows why
                channel.send(b"fleet begins\n")
                for data in feed.chunks():
                    channel.send(data, patience=math.inf)
                channel.send_eof()
            while (status := channel.wait(POLL_SECONDS)) is None and not feed.over:
                self.clock.sleep(POLL_SECONDS)
            if status == 0 and not feed.over:
                self.send_bytes(b"eof\n")
            elif status not in (0, None, 141):  # 141: the command has closed it, or is gone
                raise HostFailed(f"its standard input broke off there: exit status {status}", host=self.host.name)
        finally:
            feed.over = True

    def output(self, *, silence: float, timeout: float | None, patience: float) -> Iterator[tuple[int, bytes]]:
        """(0 stdout or 1 stderr, bytes) as they come, until it has ended.

        silence: seconds without any byte after which the host counts as lost. timeout: seconds that it may run,
        patience: those that its end may take then. Raises ConnectError (lost, protocol), DeadlineError, HostFailed.
        """
        begun = pinged = self.clock.monotonic()
        quiet, late = Silence(self.clock), False
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
            if self._streams[0].started:  # before that it is no message: a forced `cat` sends our own back
                quiet.word()
        # its status comes after the report that it was ended; where some of it could not be, maybe never
        until = self.clock.monotonic() + (STUCK_SECONDS if self.left else patience)
        while not (self._streams[0].ended and self._streams[1].ended) and self.clock.monotonic() < until:
            received = self._channel.recv_both(POLL_SECONDS)
            if received is not None and not any(received):
                return
            yield from self._pieces(received or (b"", b""))

    def _pieces(self, received: tuple[bytes, bytes]) -> Iterator[tuple[int, bytes]]:
        for number, (stream, data) in enumerate(zip(self._streams, received, strict=True)):
            for piece in stream.feed(data, self._hear) if data and not stream.ended else ():
                yield number, piece
            if len(stream.rest) > NOISE_LIMIT:
                raise foreign(self.host.name, stream.rest)

    def _hear(self, message: bytes) -> None:
        """Handles a message of command.sh."""
        if (exit := STATUS.fullmatch(message)) and int(exit[1]) <= 255:
            self.status = int(exit[1])
        elif message == b"ended":
            self.left = self._told
        elif self._feeds and (found := INPUT.fullmatch(message)):
            bring = partial(self._bring, self._feeds.pop(), found[1].decode())
            self._input = background(f"input {self.host.name}", bring)
        elif found := LEFT.fullmatch(message):
            self._told = [*self._told, (int(found[1]), found[2].decode("utf-8", "replace").strip())][:LEFT_MOST]
        elif message:
            raise ProtocolError(f"{message[:60]!r} where it tells of the command", self.host.name)

    def _ended(self) -> None:
        """Both outputs have ended. Raises what explains it, unless the end of the command was reported."""
        out, err = self._streams
        if out.ended:  # a startup file has closed stderr
            return
        status = self._status(out.started, err.rest or out.rest)
        if status < 128:
            raise HostFailed(f"the shell around the command ended with {status} before it", host=self.host.name)
        self.status = status  # by a signal that the command sent to all that it could reach
