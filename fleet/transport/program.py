"""Runs the programs of fleet/node on a host: a constant bootstrap, modules and JSON in, frames back."""

from __future__ import annotations

import _imp
import json
import marshal
import re
import shlex
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.resources import files
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.errors import ConnectError, DeadlineError, FleetError, HostFailed, Interrupted, Reason
from fleet.model import Host
from fleet.protocol.frames import EXIT, HEARTBEAT, MESSAGE
from fleet.transport.base import PING_SECONDS, POLL_SECONDS, Cancel, Drowsy, Session, Silence, Watchdog
from fleet.transport.frames import BEAT, Decoder, Frame, decoded
from fleet.transport.shell import EATEN, ENDING_SECONDS, Conversation, foreign, stalled

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

_packing = threading.Lock()
KIND = (sys.implementation.cache_tag, MAGIC_NUMBER)  # of python: code serves one of the same kind
BOOT = (
    "import sys;f=sys.stdin.buffer;h=f.readline().split();"
    f"exec(f.read(int(h[1])))if len(h)==3 and h[0]==h[2]and h[1].isdigit()else sys.exit({EATEN})"
)
# One text for every host, whatever its login shell: sh, csh and fish all read this the same way. The system's
# python3 comes first because it starts fastest; -I and -S keep the user's site-packages and PYTHON* out.
_FIND = (
    'for p in /usr/bin/python3 python3 /usr/local/bin/python3 /usr/libexec/platform-python "$@"; do '
    'if command -v "$p" >/dev/null 2>&1; then exec "$p" -I -S -c "'
    f'{BOOT}"; fi; done; '
    "echo fleet: no python3 >&2; exit 127"
)


def bootstrap(host: Host) -> str:
    """The command line that starts any program on this host."""
    extra = [host.python] if host.python and host.python.startswith("/") else []
    return " ".join(["exec sh -c", shlex.quote(_FIND), "fleet", *map(shlex.quote, extra)])


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


def pack(modules: str, texts: Mapping[str, bytes], codes: Mapping[str, CodeType] | None = None) -> bytes:
    """Returns what the bootstrap reads to run main() of some modules. First comes the length of node/loader.py between
    two equal tokens: by these the bootstrap sees if the login shell has taken a part. Then come that text, the modules,
    and the code that some have."""
    body = zlib.compress(marshal.dumps((dict(texts), KIND, marshal.dumps(dict(codes or {}), 2)), 2), 3)
    boot = (text_of("fleet.node.loader") or b"") + f"\nrun(f, {modules.split()!r}, {len(body)})\n".encode()
    return b"fleet %d fleet\n" % len(boot) + boot + body


@cache
def compiled(module: str) -> CodeType:
    """A module's code, as python keeps it next to its text; tracebacks name the file as they do on any node."""
    name = module.replace(".", "/") + ".py"
    code = SourceFileLoader(module, str(files("fleet") / name.partition("/")[2])).get_code(module)
    assert code is not None
    _imp._fix_co_filename(code, name)  # type: ignore[attr-defined]
    return code


@cache
def read_all() -> None:
    """Read the node half as it is now. A command that follows a run for days sends that, whatever an upgrade of fleet
    has put in its place meanwhile."""
    root = Path(str(files("fleet")))
    for path in (*root.glob("node/**/*.py"), *root.glob("protocol/**/*.py")):
        module = ".".join(("fleet", *path.relative_to(root).with_suffix("").parts))
        if text_of(module):
            compiled(module)


@cache
def shipped(name: str) -> bytes:
    """A program, named below fleet.node as "run.stop", as it goes over the wire; its spec comes after it. Those named
    after it are sent with it, and begin when their own spec comes: Program.go_on()."""
    modules = [f"fleet.node.{each}" for each in name.split()]
    texts = {module: text for each in modules for module, text in closure(each).items()}
    return pack(" ".join(modules), texts, {name: compiled(name) for name, text in texts.items() if text})


def packed(name: str, spec: Mapping[str, Any] | None) -> bytes:
    """Returns what a program is started with; spec: None where it comes later."""
    with _packing:  # once: the threads of all hosts come here at the same time
        modules = shipped(name)
    return modules if spec is None else modules + json.dumps(spec).encode() + b"\n"


class Program(Conversation):
    """A running program, named as shipped() has it, or several that begin one after the other in one process. spec:
    None where it comes with go_on(), and python starts meanwhile."""

    def __init__(self, session: Session, name: str, spec: Mapping[str, Any] | None) -> None:
        super().__init__(session, session.start(bootstrap(session.host)))
        self._names = name.split()
        self.name = self._names.pop(0) if spec is not None else ""
        self._decoder = Decoder(self.host.name)
        self.send_bytes(packed(name, spec))

    def go_on(self, spec: Mapping[str, Any]) -> None:
        """Begin the next one, once frames() of the last has come to its end."""
        self.name = self._names.pop(0)
        self.send(spec)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line, a JSON object: of control, with "op", or a spec. From any thread, as send_bytes: each goes out
        whole."""
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def ping(self) -> None:
        """Report to the program that we live; what is being sent just now shows it as well."""
        self.send_bytes(b'{"op": "ping"}\n', wait=False)

    def send_eof(self) -> None:
        """End it, from any thread; frames() looks up at once. Not while something is being sent."""
        if self._sending.acquire(blocking=False):
            try:
                self._channel.send_eof()
            finally:
                self._sending.release()

    def frames(
        self,
        *,
        silence: float | None = None,
        deadline: float | None = None,
        cancel: Cancel | None = None,
        poll: float = POLL_SECONDS,
        ping: float = PING_SECONDS,
        first: float | None = None,
        watchdog: Watchdog | None = None,
    ) -> Iterator[Frame]:
        """Frames as they come, up to and including X; heartbeats are swallowed.

        silence: seconds without any byte after which the host counts as lost. first: the same of its first byte, before
        which a busy node starts python; None: no other. deadline: by clock.monotonic(). poll: seconds in which all this
        is looked at once. ping: every so many seconds the program receives a heartbeat. watchdog: of frames and
        heartbeats that report work done, and of bytes that it takes; a caller that waits for other progress, too, feeds
        it. Raises ConnectError (lost, stalled, no-python, protocol), DeadlineError, Interrupted.
        """
        decoder = self._decoder
        quiet = Silence(self.clock)
        pinged = self.clock.monotonic()
        drowsy = self._channel if isinstance(self._channel, Drowsy) else None
        came = b""
        while True:
            for frame in decoder.feed(came):
                if watchdog is not None and (frame.kind != HEARTBEAT or frame.payload):
                    watchdog.word()
                if frame.kind != HEARTBEAT:
                    yield frame
                if frame.kind == EXIT:
                    return
            if decoder.noisy:
                raise foreign(self.host.name, decoder.rest)
            if came and decoder.started:  # before that it is no message: a forced `cat` sends our own back
                quiet.word()
            came = b""
            if drowsy is not None and decoder.between_frames:
                drowsy.pass_over(BEAT)
            data = self._channel.recv(poll)
            now = self.clock.monotonic()
            if cancel is not None and cancel.is_set():
                raise Interrupted("interrupted", host=self.host.name)
            if deadline is not None and now >= deadline:
                raise DeadlineError("ran out of its time", host=self.host.name)
            if now - pinged >= ping:
                pinged = now
                self.ping()
            if watchdog is not None:
                if self._sending.locked():  # which has a limit of its own
                    watchdog.word()
                if decoder.started and watchdog.seconds() >= watchdog.limit:
                    raise stalled(self.host.name, watchdog.limit)
            if data is None:
                quiet.word_at(drowsy.passed_at if drowsy is not None else 0.0)
                limit = silence if decoder.started else first or silence
                if limit is not None and quiet.seconds() >= limit:
                    raise self._silent(limit, decoder.started, decoder.rest) or self._ended(decoder)
                continue
            if data == b"":
                raise self._ended(decoder)
            came = data

    def _ended(self, decoder: Decoder) -> FleetError:
        """Why the stream ended before its X frame."""
        name = self.host.name
        ended = self._channel.wait(ENDING_SECONDS)  # its report of its end is whole by then
        text = self._channel.recv_stderr().decode("utf-8", "replace").strip()
        if not decoder.started and ended == 127:
            broken = text.splitlines()[-1][-300:] if "shared librar" in text else ""
            return ConnectError(
                Reason.of_node(f"python3 does not start there: {broken}") if broken else "no python3 on the node",
                host=name,
                kind="no-python",
                hint="a library there is broken or not found: look at LD_LIBRARY_PATH, as a login has it there"
                if broken
                else "install python3 (3.6 or newer) there, or set 'python' in the inventory",
            )
        status = self._status(decoder.started, text.encode() or decoder.rest)
        last = text.splitlines()[-1] if text else f"exit status {status}"
        return HostFailed(
            Reason.of_node(f"fleet's program '{self.name.rpartition('.')[2]}' failed there: {last[-300:]}"), host=name
        )


def first_word(
    program: Program, answer: TypeForm[T], *, timeout: float, silence: float = 15.0, cancel: Cancel | None = None
) -> T:
    """The first message of one that goes on after it. ProtocolError when that is no `answer`."""
    frames = program.frames(silence=silence, deadline=program.clock.monotonic() + timeout, cancel=cancel)
    message = next((frame.json() for frame in frames if frame.kind == MESSAGE), {})
    return decoded(answer, message, program.host.name)


def last_word(
    program: Program,
    answer: TypeForm[T],
    *,
    timeout: float | None = None,
    silence: float | None = 15.0,
    cancel: Cancel | None = None,
) -> T:
    """The last message of one that ends, or that another one follows. ProtocolError when that is no `answer`."""
    deadline = None if timeout is None else program.clock.monotonic() + timeout
    last: dict[str, Any] = {}
    for frame in program.frames(silence=silence, deadline=deadline, cancel=cancel):
        if frame.kind == MESSAGE:
            last = frame.json()
    return decoded(answer, last, program.host.name)


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
    with Program(session, name, spec) as program:
        return last_word(program, answer, timeout=timeout, silence=silence, cancel=cancel)
