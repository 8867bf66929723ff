"""Runs the programs of fleet/node on a host: a constant bootstrap, modules and JSON in, frames back."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.errors import ConnectError, DeadlineError, FleetError, HostFailed, Interrupted, Reason
from fleet.model import Host
from fleet.protocol.frames import EXIT, HEARTBEAT, MESSAGE
from fleet.transport.base import PING_SECONDS, POLL_SECONDS, Cancel, Session, Silence
from fleet.transport.frames import Decoder, Frame, decoded
from fleet.transport.shell import EATEN, ENDING_SECONDS, Conversation, foreign

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

BOOT = (
    "import sys;f=sys.stdin.buffer;h=f.readline().split();"
    f"exec(f.read(int(h[1])))if len(h)==3 and h[0]==h[2]and h[1].isdigit()else sys.exit({EATEN})"
)
# One text for every host, whatever its login shell: sh, csh and fish all read this the same way. The system's
# python3 comes first because it starts fastest; -I and -S keep the user's site-packages and PYTHON* out.
_FIND = (
    'for p in /usr/bin/python3 python3 /usr/local/bin/python3 /usr/libexec/platform-python "$@"; do '
    'if command -v "$p" >/dev/null 2>&1; then exec "$p" -I -S -c "CODE"; fi; done; '
    "echo fleet: no python3 >&2; exit 127"
)


def python_line(host: Host, code: str) -> str:
    """The command line that has this host's python3 run a constant, which holds none of "$`\\!."""
    extra = [host.python] if host.python and host.python.startswith("/") else []
    return " ".join(["exec sh -c", shlex.quote(_FIND.replace("CODE", code)), "fleet", *map(shlex.quote, extra)])


def bootstrap(host: Host) -> str:
    """The command line that starts any program on this host."""
    return python_line(host, BOOT)


# An import of what is sent along. Not looked for with ast, which takes 49 ms for the programs of one launch, with
# all else 6; a test compares the two.
_IMPORT = re.compile(rb"^ *from (fleet(?:\.\w+)*) import (\([^)]*\)|.*)$", re.MULTILINE)
_FOR_TYPES = re.compile(rb"^if TYPE_CHECKING:\n(?: .*\n|\n)+", re.MULTILINE)


@cache
def text_of(module: str) -> bytes | None:
    """The text of a module of this package, None where it has none of that name: it is a package, or no module."""
    try:
        return (files("fleet") / ("/".join(module.split(".")[1:]) + ".py")).read_bytes()
    except FileNotFoundError:
        return None


def imports(module: str) -> Iterator[str]:
    """The modules of fleet that a module of the node half imports."""
    for package, names in _IMPORT.findall(_FOR_TYPES.sub(b"", text_of(module) or b"")):
        if text_of(package.decode()) is not None:
            yield package.decode()
        else:
            yield from (f"{package.decode()}.{name.decode()}" for name in re.findall(rb"\w+", names))


def closure(module: str) -> dict[str, bytes]:
    """All that has to be sent for a module to be imported: name -> text; the packages that they lie in have none."""
    found, todo = dict[str, bytes](), {module}
    while todo:
        name = todo.pop()
        text = text_of(name)
        if text is None:
            raise ModuleNotFoundError(f"no module of the node half is called {name}")
        found[name] = text
        todo.update(inner for inner in imports(name) if inner not in found)
    for name in list(found):
        while name := name.rpartition(".")[0]:
            found.setdefault(name, b"")
    return found


def pack(module: str, texts: Mapping[str, bytes]) -> bytes:
    """What the bootstrap reads to run main() of a module: the length of node/loader.py between two equal words, so that
    it sees whether the login shell has taken a part of it; that; the texts of the modules."""
    ordered = sorted(texts.items())
    sizes = [(name, len(text)) for name, text in ordered]
    boot = (text_of("fleet.node.loader") or b"") + f"\nrun(f, {module!r}, {sizes!r})\n".encode()
    return b"fleet %d fleet\n" % len(boot) + boot + b"".join(text for _, text in ordered)


@cache
def shipped(name: str) -> bytes:
    """A program, named below fleet.node as "run.stop", as it goes over the wire; its spec comes behind it."""
    module = f"fleet.node.{name}"
    return pack(module, closure(module))


def packed(name: str, spec: Mapping[str, Any]) -> bytes:
    """What a program is started with."""
    return shipped(name) + json.dumps(spec).encode() + b"\n"


class Program(Conversation):
    """A running program, named as shipped() has it."""

    def __init__(self, session: Session, name: str, spec: Mapping[str, Any]) -> None:
        super().__init__(session, session.start(bootstrap(session.host)))
        self.name = name
        self._send(packed(name, spec))

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one control line, a JSON object with "op". From any thread, as send_bytes: each goes out whole."""
        self._send(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes behind the spec, for programs that read a payload."""
        self._send(data)

    def ping(self) -> None:
        """Let the program know that we live; what is being sent just now tells it as well."""
        self._send(b'{"op": "ping"}\n', wait=False)

    def send_eof(self) -> None:
        self._channel.send_eof()

    def frames(
        self,
        *,
        silence: float | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        poll: float = POLL_SECONDS,
        ping: float = PING_SECONDS,
    ) -> Iterator[Frame]:
        """Frames as they come, up to and including X; heartbeats are swallowed.

        silence: seconds without any byte after which the host counts as lost. deadline: a time.monotonic()
        value. poll: seconds in which all this is looked at once. ping: every so many seconds the program hears that we
        live. Raises ConnectError (lost, no-python, protocol), DeadlineError, Interrupted.
        """
        decoder = Decoder(self.host.name)
        quiet = Silence()
        pinged = time.monotonic()
        while True:
            data = self._channel.recv(poll)
            now = time.monotonic()
            if cancel is not None and cancel.is_set():
                raise Interrupted("interrupted", host=self.host.name)
            if deadline is not None and now >= deadline:
                raise DeadlineError("ran out of its time", host=self.host.name)
            if now - pinged >= ping:
                pinged = now
                self.ping()
            if data is None:
                if silence is not None and quiet.seconds() >= silence:
                    raise self._silent(silence, decoder.started, decoder.rest) or self._ended(decoder)
                continue
            if data == b"":
                raise self._ended(decoder)
            for frame in decoder.feed(data):
                if frame.kind != HEARTBEAT:
                    yield frame
                if frame.kind == EXIT:
                    return
            if decoder.started:  # before that it is nobody's word: a forced `cat` sends our own back
                quiet.word()
            elif decoder.noisy:
                raise foreign(self.host.name, decoder.rest)

    def _ended(self, decoder: Decoder) -> FleetError:
        """Why the stream ended before its X frame."""
        name = self.host.name
        ended = self._channel.wait(ENDING_SECONDS)  # what it says of its end is whole by then
        if not decoder.started and ended == 127:
            return ConnectError(
                "no python3 on the node",
                host=name,
                kind="no-python",
                hint="install python3 (3.6 or newer) there, or set 'python' in the inventory",
            )
        said = self._channel.recv_stderr().decode("utf-8", "replace").strip()
        status = self._status(decoder.started, said.encode() or decoder.rest)
        last = said.splitlines()[-1] if said else f"exit status {status}"
        return HostFailed(
            Reason.of_node(f"fleet's program '{self.name.rpartition('.')[2]}' failed there: {last[-300:]}"), host=name
        )


def call(
    session: Session,
    name: str,
    spec: Mapping[str, Any],
    answer: TypeForm[T],
    *,
    timeout: float | None = None,
    silence: float | None = 15.0,
    cancel: Cancel | None = None,
) -> T:
    """Run a remote program to its end, return its last message. ProtocolError when that is no `answer`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    last: dict[str, Any] = {}
    with Program(session, name, spec) as program:
        for frame in program.frames(silence=silence, deadline=deadline, cancel=cancel):
            if frame.kind == MESSAGE:
                last = frame.json()
    return decoded(answer, last, session.host.name)
