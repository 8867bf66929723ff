"""Replaces sshd on hosts where a scheduler starts processes and no user can log in. It connects to the head, and starts
the commands that the head requests, each with its own connection.

spec: {"head": [[address, port]], "tls": {"cert", "key", "peer"}, "step", "scope": values of FLEET_STEP and FLEET_SCOPE
in the environment of all processes that it starts, "name": the variable that has this host's name, "unset": a pattern
of variables that it removes from their environment}. A step is one srun command: the scheduler's tasks, one agent each.

All agents of a step get the same spec. So they share one certificate ("cert"). The head has another one ("peer"), whose
key only the head has. Each agent makes a random token, which identifies it. The agent prints one line with the token's
digest, and the scheduler reports to the head which of its tasks printed that line. Only the head gets the token itself.

An agent sends {"host", "token"}. The head then sends {"start": number, "command"} for each channel. For a channel the
agent connects again, and sends {"host", "token", "channel": number}. Frames follow, see fleet/protocol/frames.py. The
head sends {"signal": number} for the ranks on the agent's node. The agent sends it for a signal of the scheduler.

The step ends when its agents end. So an agent that has lost its head goes on while any process that it started is
alive. Such a process may be a run's supervisor, which has a lease: within that time another head may connect."""

import hashlib
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing, suppress
from struct import Struct
from threading import Lock

from fleet.node.base import json
from fleet.node.base.errors import on_failure
from fleet.node.base.processes import rank_wrappers, send_signal, start_time, with_env
from fleet.node.base.types import Any
from fleet.node.base.wire import start_thread
from fleet.node.delivery.chain.link import NONSENSE, Link, tls_context
from fleet.protocol.codes import FOR_RANKS
from fleet.protocol.frames import EXIT, HEADER, OUTPUT, PREAMBLE
from fleet.protocol.state import SCOPE

LINE_BYTES = 1 << 20
MARK = "FLEET_STEP"  # the variable that marks all processes that this agent starts
PRINTED = "fleet agent %s"  # the line that the agent prints; %s stands for the token's digest
RETRY_SECONDS = 1.0
IDLE_SECONDS = 20.0  # the agent ends after so long without a head and without processes that it started
DIAL_SECONDS = 5.0
BYTES = 1 << 16  # the most bytes of one read
MAX_BUFFERED = 1 << 20  # if so many bytes wait to be written to one side, the other side is not read
SLICE = 0.2  # seconds between polls. A child may hold the pipes of an ended process open: only a poll shows that end
HEAD = Struct(HEADER)
ONCE_SECONDS = 2.0  # a second signal of the same number within this time is ignored


def digest_of(token: str) -> str:
    """Returns the sha256 of a token. The digest may be printed, the token may not."""
    return hashlib.sha256(token.encode()).hexdigest()


def dial(spec: "dict[str, Any]", context: "Any", **message: "Any") -> Link:
    """Connects to the head, at the first of its addresses that accepts, and sends `message` as a line. Returns the
    connection. Raises OSError if no address accepts."""
    wrong: OSError = OSError("no address")
    for address, port in spec["head"]:
        try:
            plain = socket.create_connection((address, port), DIAL_SECONDS)
            with on_failure(plain.close):
                link = Link(plain, context, False, spec["tls"])
                link.send_line({**spec["me"], **message})
                return link
        except OSError as error:
            wrong = error
    raise wrong


class Pump:
    """Moves bytes between the head and a process. It uses one thread, as two must not use an SSL connection at once.
    The head sends the process's stdin in OUTPUT frames; an empty frame ends stdin. The head receives PREAMBLE, OUTPUT
    frames of stdout (stream 1) and stderr (stream 2), and EXIT."""

    def __init__(self, sock: "Any", process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin and process.stdout and process.stderr
        sock.setblocking(False)
        self._sock, self._process = sock, process
        self._stdin = process.stdin.fileno()
        self._open = {process.stdout.fileno(): 1, process.stderr.fileno(): 2}
        for fd in (self._stdin, *self._open):
            os.set_blocking(fd, False)
        self._received = bytearray()  # bytes from the head that are not a whole frame yet
        self._input = bytearray()
        self._closing = self._disconnected = self._closed = False
        self._output = bytearray(PREAMBLE)

    def run(self) -> None:
        """Works until the process has ended and all its output is sent. If the connection is lost, closes the process's
        stdin and returns."""
        while not self._disconnected:
            self._turn()
            status = self._process.poll()
            if status is not None and (not self._open or not self._any_output()):
                self._frame(EXIT, 0, json.dumps({"exit_status": status if status >= 0 else 128 - status}).encode())
                while self._output and not self._disconnected:
                    self._wait(select.POLLOUT)
                    self._send()
                return

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(
            self._sock,
            (select.POLLIN if len(self._input) < MAX_BUFFERED else 0) | (select.POLLOUT if self._output else 0),
        )
        if self._input:
            poll.register(self._stdin, select.POLLOUT)
        for fd in self._open if len(self._output) < MAX_BUFFERED else ():
            poll.register(fd, select.POLLIN)
        ready = dict(poll.poll(0 if self._sock.pending() else SLICE * 1000))
        if len(self._input) < MAX_BUFFERED and (self._sock.pending() or ready.get(self._sock.fileno())):
            self._receive()
        if self._input and self._stdin in ready:
            self._feed()
        self._end_input()
        for fd in [fd for fd in self._open if fd in ready]:
            self._take(fd)
        self._send()

    def _any_output(self) -> bool:
        """Reads the remaining output of a process that has ended. Returns whether it found output."""
        before = len(self._output)
        for fd in list(self._open):
            self._take(fd)
        return len(self._output) > before

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._sock, events)
        poll.poll(SLICE * 1000)

    def _frame(self, kind: bytes, stream: int, payload: bytes) -> None:
        self._output += HEAD.pack(kind, stream, len(payload)) + payload

    def _receive(self) -> None:
        try:
            data = self._sock.recv(BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            data = b""
        if not data:
            self._disconnected = True
        self._received += data
        while len(self._received) >= HEAD.size:
            _, _, length = HEAD.unpack_from(self._received)
            end = HEAD.size + length
            if len(self._received) < end:
                return
            if not self._closed:  # after close, the descriptor's number may belong to another file
                self._input += self._received[HEAD.size : end]
            self._closing = self._closing or not length
            del self._received[:end]

    def _feed(self) -> None:
        try:
            del self._input[: os.write(self._stdin, self._input[:BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # no process reads stdin
            self._input.clear()
            self._closing = True

    def _end_input(self) -> None:
        if (self._closing and not self._input or self._disconnected) and not self._closed:
            self._closed = True
            assert self._process.stdin
            self._process.stdin.close()

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, BYTES)
        except BlockingIOError:
            return
        if data:
            self._frame(OUTPUT, self._open[fd], data)
        else:
            del self._open[fd]

    def _send(self) -> None:
        try:
            while self._output:
                del self._output[: self._sock.send(bytes(self._output[:BYTES]))]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._disconnected = True


def pump(sock: "Any", process: "subprocess.Popen[bytes]") -> None:
    """Moves bytes until the process or the connection has ended. Then closes both and waits for the process."""
    with process, closing(sock):
        Pump(sock, process).run()


def serve(spec: "dict[str, Any]", context: "Any", number: int, command: str) -> None:
    """Serves one channel: connects, starts the command, and moves its bytes until it ends."""
    try:
        link = dial(spec, context, channel=number)
    except OSError:
        return
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=os.path.expanduser("~"),
        start_new_session=True,
    )
    pump(link.sock, process)


def report(spec: "dict[str, Any]", context: "Any", number: int) -> None:
    """Sends a signal of the scheduler to the head, which then ends the run and this agent."""
    with suppress(OSError):
        dial(spec, context, signal=number).sock.close()


def pass_on(spec: "dict[str, Any]", name: str, number: int) -> None:
    """Sends a signal directly to the ranks of this step, or of the whole job. name: the variable that marks the ranks.
    Ignores the same signal within ONCE_SECONDS: a signal for a whole job comes from the scheduler and from the head."""
    with spec["lock"]:
        last, now = spec["passed"].get(number, 0.0), time.monotonic()
        if now - last < ONCE_SECONDS:
            return
        spec["passed"][number] = now
    for pid in rank_wrappers(with_env(name, os.environ[name])):
        send_signal(pid, start_time(pid) or 0, number)


def take_signals(spec: "dict[str, Any]", context: "Any", reader: int) -> None:
    """Reads signal numbers from a pipe and handles each. It runs in its own thread: the main thread may just begin to
    wait for the head when a signal comes, and would handle the signal only after the head's next message."""
    while True:
        for number in os.read(reader, 64):
            if number in FOR_RANKS:
                start_thread(pass_on, spec, MARK, number)
            else:
                start_thread(report, spec, context, number)


def serve_head(spec: "dict[str, Any]", context: "Any") -> bool:
    """Connects to the head and carries out its requests. Returns True when the head ends this agent. Raises OSError if
    the head is gone, and one of NONSENSE for an invalid line."""
    link = dial(spec, context)
    link.sock.settimeout(None)
    while True:
        request = link.read_line(LINE_BYTES)
        if "signal" in request:
            pass_on(spec, SCOPE, int(request["signal"]))
            continue
        if "start" not in request:
            return True
        start_thread(serve, spec, context, int(request["start"]), str(request["command"]))


def main() -> None:
    spec = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    host = os.environ.get(spec["name"]) or socket.gethostname()
    spec.update(me={"host": host, "token": os.urandom(32).hex()}, passed={}, lock=Lock())
    unset = re.compile(spec["unset"])
    for name in [name for name in os.environ if unset.fullmatch(name)]:
        del os.environ[name]
    os.environ[MARK], os.environ[SCOPE] = spec["step"], spec["scope"]
    try:
        context = tls_context(False, spec["tls"])
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        sys.exit("%s: its python3 has no TLS 1.3: %s" % (host, error))

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *FOR_RANKS):
        signal.signal(number, lambda *_: None)
    start_thread(take_signals, spec, context, reader)
    print(PRINTED % digest_of(spec["me"]["token"]), flush=True)
    over, received = False, time.monotonic()
    while not over and (time.monotonic() - received < IDLE_SECONDS or with_env(MARK, spec["step"])):
        try:
            over = serve_head(spec, context)
            received = time.monotonic()
        except (OSError, *NONSENSE):
            time.sleep(RETRY_SECONDS)
