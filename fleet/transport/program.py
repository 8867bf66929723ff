"""Runs the programs of fleet/node on a host. It sends a constant bootstrap, modules and JSON, and receives frames."""

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
from typing import TYPE_CHECKING, Any

from fleet.codec import T
from fleet.errors import ConnectError, DeadlineError, FleetError, HostFailed, Interrupted, Reason
from fleet.model import Host
from fleet.protocol.frames import EXIT, HEARTBEAT, MESSAGE
from fleet.transport.base import PING_SECONDS, POLL_SECONDS, Cancel, IgnoresHeartbeats, Session, Watchdog
from fleet.transport.frames import BEAT, Decoder, Frame, decoded
from fleet.transport.shell import EATEN, ENDING_SECONDS, Conversation, foreign, stalled

if TYPE_CHECKING:
    from typing_extensions import TypeForm


SILENCE_SECONDS = 15.0  # a host that sends no byte for so long is lost; a verb may have another limit
_packing = threading.Lock()
KIND = (sys.implementation.cache_tag, MAGIC_NUMBER)  # only a python of this kind can run the compiled code
BOOT = (
    "import sys;f=sys.stdin.buffer;h=f.readline().split();"
    f"exec(f.read(int(h[1])))if len(h)==3 and h[0]==h[2]and h[1].isdigit()else sys.exit({EATEN})"
)
# All login shells (sh, csh, fish) read this text alike. The system's python3 comes first because it starts fastest. -I
# and -S keep the user's site-packages and PYTHON* out.
_FIND = (
    'for p in /usr/bin/python3 python3 /usr/local/bin/python3 /usr/libexec/platform-python "$@"; do '
    'if command -v "$p" >/dev/null 2>&1; then exec "$p" -I -S -c "'
    f'{BOOT}"; fi; done; '
    "echo fleet: no python3 >&2; exit 127"
)


def bootstrap(host: Host) -> str:
    """Returns the command line that starts any program on this host."""
    extra = [host.python] if host.python and host.python.startswith("/") else []
    return " ".join(["exec sh -c", shlex.quote(_FIND), "fleet", *map(shlex.quote, extra)])


# Matches an import of a module of fleet. For the programs of one launch, this regex takes 6 ms, and ast takes 49 ms. A
# test compares the two.
_IMPORT = re.compile(rb"^ *from (fleet(?:\.\w+)*) import (\([^)]*\)|.*)$", re.MULTILINE)
_FOR_TYPES = re.compile(rb"^if TYPE_CHECKING:\n(?: .*\n|\n)+", re.MULTILINE)


@cache
def text_of(module: str) -> bytes | None:
    """Returns the text of a module of fleet, None for a package or an unknown name."""
    try:
        return (files("fleet") / ("/".join(module.split(".")[1:]) + ".py")).read_bytes()
    except FileNotFoundError:
        return None


def imports(module: str) -> Iterator[str]:
    """Yields the modules of fleet that a module of the node half imports (the code that runs on hosts)."""
    for package, names in _IMPORT.findall(_FOR_TYPES.sub(b"", text_of(module) or b"")):
        if text_of(package.decode()) is not None:
            yield package.decode()
        else:
            yield from (f"{package.decode()}.{name.decode()}" for name in re.findall(rb"\w+", names))


def closure(module: str) -> dict[str, bytes]:
    """Returns the modules that a node needs to import this one: name -> text. The text of a package is ""."""
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
    """Returns the bytes that the bootstrap reads to run main() of some modules.

    The first line has the length of node/loader.py between two equal tokens. If they are not equal, the login shell has
    read a part of the bytes, and the bootstrap ends. The loader's text follows, then the modules and compiled code."""
    body = zlib.compress(marshal.dumps((dict(texts), KIND, marshal.dumps(dict(codes or {}), 2)), 2), 3)
    boot = (text_of("fleet.node.loader") or b"") + f"\nrun(f, {modules.split()!r}, {len(body)})\n".encode()
    return b"fleet %d fleet\n" % len(boot) + boot + body


@cache
def compiled(module: str) -> CodeType:
    """Returns a module's compiled code. Its tracebacks name the module's file as tracebacks of a node do."""
    name = module.replace(".", "/") + ".py"
    code = SourceFileLoader(module, str(files("fleet") / name.partition("/")[2])).get_code(module)
    assert code is not None
    _imp._fix_co_filename(code, name)  # type: ignore[attr-defined]
    return code


@cache
def read_all() -> None:
    """Reads all modules of the node half now. A command may follow a run for days. After an upgrade of fleet it still
    sends the modules of its own version."""
    root = Path(str(files("fleet")))
    for path in (*root.glob("node/**/*.py"), *root.glob("protocol/**/*.py")):
        module = ".".join(("fleet", *path.relative_to(root).with_suffix("").parts))
        if text_of(module):
            compiled(module)


@cache
def shipped(name: str) -> bytes:
    """Returns the bytes of programs. name: their modules below fleet.node, separated by blanks ("run.stop run.follow").
    The first program reads its spec right after these bytes. Program.go_on() sends the spec of each later one."""
    modules = [f"fleet.node.{each}" for each in name.split()]
    texts = {module: text for each in modules for module, text in closure(each).items()}
    return pack(" ".join(modules), texts, {name: compiled(name) for name, text in texts.items() if text})


def packed(name: str, spec: Mapping[str, Any] | None) -> bytes:
    """Returns the bytes that start a program. spec: None if it is sent later."""
    with _packing:  # all hosts' threads call this at once; one thread packs for all
        modules = shipped(name)
    return modules if spec is None else modules + json.dumps(spec).encode() + b"\n"


class Program(Conversation):
    """Controls a running program, or several that start one after the other in one process. name: as for shipped().
    spec: None if go_on() sends it later; python starts meanwhile."""

    def __init__(self, session: Session, name: str, spec: Mapping[str, Any] | None) -> None:
        super().__init__(session, session.start(bootstrap(session.host)))
        self._names = name.split()
        self.name = self._names.pop(0) if spec is not None else ""
        self._decoder = Decoder(self.host.name)
        self.send_bytes(packed(name, spec))

    def go_on(self, spec: Mapping[str, Any]) -> None:
        """Starts the next program. The caller has read frames() of the previous one to its end."""
        self.name = self._names.pop(0)
        self.send(spec)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends one line of JSON, from any thread: a control message with "op", or a spec."""
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def ping(self) -> None:
        """Sends a heartbeat, unless other bytes are being sent at this moment."""
        self.send_bytes(b'{"op": "ping"}\n', wait=False)

    def send_eof(self) -> None:
        """Ends the program, from any thread, and wakes frames(). Does nothing while bytes are being sent."""
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
        """Yields frames up to and including EXIT, the last one, without heartbeats.

        silence: seconds without a byte after which the host is lost. first: the same limit for the first byte, which a
        busy node sends late; None means `silence`. deadline: the latest time, by clock.monotonic(). poll: seconds
        between two checks of all limits. ping: seconds between heartbeats to the program. watchdog: measures the time
        without progress: frames, heartbeats that report work, bytes that the program reads. A caller may report other
        progress to the watchdog. Raises ConnectError (lost, stalled, no-python, protocol), DeadlineError, Interrupted.
        """
        decoder = self._decoder
        quiet = Watchdog(clock=self.clock)
        pinged = self.clock.monotonic()
        ignoring = self._channel if isinstance(self._channel, IgnoresHeartbeats) else None
        came = b""
        while True:
            for frame in decoder.feed(came):
                if watchdog is not None and (frame.kind != HEARTBEAT or frame.payload):
                    watchdog.received()
                if frame.kind != HEARTBEAT:
                    yield frame
                if frame.kind == EXIT:
                    return
            if decoder.noisy:
                raise foreign(self.host.name, decoder.rest)
            if came and decoder.started:  # earlier bytes are no proof: a forced `cat` returns what fleet sent
                quiet.received()
            came = b""
            if ignoring is not None and decoder.between_frames:
                ignoring.ignore_heartbeat(BEAT)
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
                if self._sending.locked():  # sending has a limit of its own
                    watchdog.received()
                if decoder.started and watchdog.seconds() >= watchdog.limit:
                    raise stalled(self.host.name, watchdog.limit)
            if data is None:
                quiet.received_at(ignoring.heartbeat_at if ignoring is not None else 0.0)
                limit = silence if decoder.started else first or silence
                if limit is not None and quiet.seconds() >= limit:
                    raise self._silent(limit, decoder.started, decoder.rest) or self._ended(decoder)
                continue
            if data == b"":
                raise self._ended(decoder)
            came = data

    def _ended(self, decoder: Decoder) -> FleetError:
        """Returns the error for a stream that ended before its EXIT frame."""
        name = self.host.name
        ended = self._channel.wait(ENDING_SECONDS)  # stderr is complete once the process has ended
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


def first_message(program: Program, answer: TypeForm[T], *, timeout: float, cancel: Cancel | None = None) -> T:
    """Returns the first message of a program, which runs on. Raises ProtocolError if the message is no `answer`."""
    frames = program.frames(silence=SILENCE_SECONDS, deadline=program.clock.monotonic() + timeout, cancel=cancel)
    message = next((frame.json() for frame in frames if frame.kind == MESSAGE), {})
    return decoded(answer, message, program.host.name)


def last_message(
    program: Program,
    answer: TypeForm[T],
    *,
    timeout: float | None = None,
    silence: float | None = SILENCE_SECONDS,
    cancel: Cancel | None = None,
) -> T:
    """Returns the last message of a program. Then the program ends, or the next one can start. Raises ProtocolError if
    the last message is no `answer`."""
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
    silence: float | None = SILENCE_SECONDS,
    cancel: Cancel | None = None,
) -> T:
    """Runs a remote program. Returns its last message. Raises ProtocolError if that is no `answer`."""
    with Program(session, name, spec) as program:
        return last_message(program, answer, timeout=timeout, silence=silence, cancel=cancel)
