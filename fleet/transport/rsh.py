"""rsync's remote shell, over a session that is open already: no second login, no second key exchange.

rsync is started with `-e "PYTHON -I -S rsh_client.py FD"`; that tiny client hands the argv rsync wants to run on the
node, then its bytes, to this side, which starts it as a channel of the session and pumps. FD is inherited: there is no
socket that anybody else could find, or that a killed sync could leave behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from fleet.errors import ConnectError, FleetError, HostFailed, Interrupted, ProtocolError
from fleet.protocol.frames import PREAMBLE
from fleet.transport.base import Cancel, Channel, Session, Silence
from fleet.transport.frames import NOISE_LIMIT

SAID_BYTES = 64 * 1024
# what a login shell's startup files print comes before the mark, and is no part of rsync's conversation
_QUIETLY = """'printf "\\\\000FLEET1\\\\n"; exec "$@"'"""


class _Bridge(threading.Thread):
    """Starts rsync's server on the node, pumps both ways until both ends are done."""

    def __init__(self, session: Session, client: socket.socket, moved: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._session, self._client, self._moved = session, client, moved
        self.error: FleetError | None = None
        self.remote_stderr = b""
        self.silent = Silence()
        self._channel: Channel | None = None

    def run(self) -> None:
        try:
            self._serve(self._client)
        except FleetError as error:
            self.error = error
        except OSError:
            pass  # rsync ended before it connected, or went away: its own exit status tells
        finally:
            self.close()

    def _serve(self, client: socket.socket) -> None:
        length = int.from_bytes(_exactly(client, 4), "big")
        argv = json.loads(_exactly(client, length))
        self._channel = channel = self._session.start(f"exec sh -c {_QUIETLY} fleet {shlex.join(argv)}")
        up = threading.Thread(target=self._upload, args=(client, channel), daemon=True)
        up.start()
        chatter: bytes | None = b""
        while True:
            data = channel.recv(0.5)
            if data and chatter is not None:
                chatter += data
                begun = PREAMBLE in chatter
                data = chatter.partition(PREAMBLE)[2] or None
                chatter = None if begun else chatter[-NOISE_LIMIT:]
            if data:
                self.silent.word()
                client.sendall(data)
            elif data == b"":
                break
        status = channel.wait(5.0)
        self.remote_stderr = channel.recv_stderr()
        client.shutdown(socket.SHUT_WR)
        if status:
            text = self.remote_stderr.decode("utf-8", "replace").strip().splitlines()
            self.error = HostFailed(f"rsync on the node ended with {status}: {text[-1] if text else ''}")
        elif status is None:
            self.error = ConnectError("the connection was lost", kind="lost")

    def _upload(self, client: socket.socket, channel: Channel) -> None:
        try:
            while data := client.recv(1 << 17):
                channel.send(data)
                self.silent.word()
                self._moved(len(data))
            channel.send_eof()
        except (OSError, FleetError):
            pass

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        with contextlib.suppress(OSError):  # wakes whoever reads from it
            self._client.shutdown(socket.SHUT_RDWR)
        self._client.close()


def _exactly(client: socket.socket, n: int) -> bytes:
    data = client.recv(n, socket.MSG_WAITALL)
    if len(data) < n:
        raise OSError("rsync's end closed early")
    return data


def rsync(
    session: Session,
    options: Sequence[str],
    source: Path,
    target: str,
    names: bytes,
    *,
    cancel: Cancel,
    moved: Callable[[int], None],
    silence: float = 30.0,
) -> None:
    """Run `rsync OPTIONS SOURCE/ NODE:TARGET/` over the session; `moved` hears of bytes sent.

    names: what --files-from=- reads, each ended by a NUL.

    TARGET travels inside rsync's protocol (--secluded-args), so no shell ever reads it. A relative one would not stay a
    path: "node::module" is a daemon that asks for a password. $RSYNC_* stays out. Raises HostFailed with what rsync
    said, ConnectError(lost) after `silence` seconds without a byte, Interrupted.
    """
    name = session.host.name
    if not target.startswith("/"):
        raise ProtocolError(f"{target[:60]!r} where an absolute path belongs", name)
    # to rsync a name that begins with # or ; is a comment
    stdin = b"".join(b"./" + one + b"\0" for one in names.split(b"\0") if one)
    ours, theirs = socket.socketpair()
    bridge = _Bridge(session, ours, moved)
    client = files("fleet") / "transport" / "rsh_client.py"
    shell = " ".join(map(_rsh_quote, [sys.executable, "-I", "-S", str(client), str(theirs.fileno())]))
    with theirs, tempfile.TemporaryFile() as listed:
        listed.write(stdin)
        listed.seek(0)
        process = subprocess.Popen(
            ["rsync", "--secluded-args", *options, "-e", shell, "--", f"{source}/", f"node:{target}/"],
            stdin=listed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
            env={k: v for k, v in os.environ.items() if not k.startswith("RSYNC_")},
        )
    bridge.start()
    try:
        said = _communicate(process, bridge, cancel, silence, name)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        bridge.close()
    bridge.join(5.0)
    if process.returncode != 0:
        if isinstance(bridge.error, ConnectError):
            bridge.error.host = name
            raise bridge.error
        text = (said + b"\n" + bridge.remote_stderr).decode("utf-8", "replace").strip().splitlines()
        if any("No space left" in line or "Disk quota" in line for line in text):
            raise HostFailed(
                "No space left on device", host=name, kind="rsync", hint="free some space there, then run this again"
            )
        first = next((line for line in text if "rsync" in line), text[0] if text else "no reason given")
        raise HostFailed(f"rsync ended with {process.returncode}: {first[:300]}", host=name, kind="rsync")


def _communicate(process: subprocess.Popen[bytes], bridge: _Bridge, cancel: Cancel, silence: float, name: str) -> bytes:
    said: list[bytes] = []

    def listen() -> None:
        assert process.stderr
        with process.stderr as pipe:
            said.append(pipe.read(SAID_BYTES))
            while pipe.read(SAID_BYTES):  # a node may say more than anybody wants to keep
                pass

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    while True:
        try:
            process.wait(0.1)
            break
        except subprocess.TimeoutExpired:
            if cancel.is_set():
                raise Interrupted("interrupted", host=name) from None
            if bridge.silent.seconds() > silence:
                raise ConnectError(
                    f"silent for {round(silence, 1):g} s",
                    host=name,
                    kind="lost",
                    hint="the host hangs, or the link to it is cut",
                ) from None
    listener.join(2.0)
    return b"".join(said)


def _rsh_quote(word: str) -> str:
    """rsync splits -e at blanks and knows '...' and "..." around words, with a doubled quote for the quote."""
    return "'" + word.replace("'", "''") + "'"
