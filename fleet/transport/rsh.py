"""rsync's remote shell, over a session that is open already: no second login, no second key exchange.

rsync is started with `-e "PYTHON -I -S rsh_client.py FD"`; that tiny client hands the argv that rsync wants to run on
the node, and its own stdin and stdout, to this side, which starts it as a channel of the session and pumps. FD is
inherited: there is no socket that anybody else could find, or that a killed sync could leave behind.
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
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO

from fleet.errors import ConnectError, FleetError, HostFailed, Interrupted, ProtocolError
from fleet.transport.base import Cancel, Channel, Session, Silence, clock_of
from fleet.transport.frames import behind_preamble
from fleet.transport.shell import silent

OPTIONS = ("--times", "--from0", "--files-from=-", "--no-implied-dirs", "--partial", "--timeout=60")
SAID_BYTES = 64 * 1024
ARGV_BYTES = 1 << 16
# what a login shell's startup files print comes before the mark, and is no part of rsync's conversation
_QUIETLY = """'printf "\\\\000FLEET1\\\\n"; exec "$@"'"""


class _Bridge(threading.Thread):
    """Starts rsync's server on the node, pumps both ways until both ends are done."""

    def __init__(self, session: Session, client: socket.socket, moved: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._session, self._client, self._moved = session, client, moved
        self.error: FleetError | None = None
        self.remote_stderr = b""
        self.silent = Silence(clock_of(session))
        self._channel: Channel | None = None

    def run(self) -> None:
        try:
            self._serve()
        except FleetError as error:
            self.error = error
        except OSError:
            pass  # rsync went away: its own exit status tells
        finally:
            self.close()

    def _serve(self) -> None:
        argv, fds, *_ = socket.recv_fds(self._client, ARGV_BYTES, 2)
        if not fds:  # rsync ended before it came to that
            return
        for fd in fds:
            os.set_blocking(fd, True)  # as rsync hands them to its remote shell, they are not
        with open(fds[0], "rb", 0) as said, open(fds[1], "wb") as told:
            line = f"exec sh -c {_QUIETLY} fleet {shlex.join(json.loads(argv))}"
            self._channel = channel = self._session.start(line)
            threading.Thread(target=self._upload, args=(said, channel), daemon=True).start()
            for data in behind_preamble(partial(channel.recv, 0.5)):
                self.silent.word()
                told.write(data)
                told.flush()
            status = channel.wait(5.0)
            self.remote_stderr = channel.recv_stderr()
        if status is None:
            self.error = ConnectError("the connection was lost", kind="lost")
        elif status > 128:  # what rsync here says of that is "Broken pipe"
            self.error = HostFailed(f"rsync failed there: exit status {status}", kind="rsync")

    def _upload(self, said: IO[bytes], channel: Channel) -> None:
        with contextlib.suppress(OSError, ValueError, FleetError):  # closed, by the other half
            while data := said.read(1 << 17):
                channel.send(data)
                self.silent.word()
                self._moved(len(data))
            channel.send_eof()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        with contextlib.suppress(OSError):  # wakes whoever reads from it
            self._client.shutdown(socket.SHUT_RDWR)
        self._client.close()


def local(path: str) -> str:
    """A path as it travels, for this machine's system calls."""
    return os.fsdecode(path.encode("utf-8", "surrogateescape"))


def stage(
    session: Session,
    options: Sequence[str],
    folder: Path,
    there: str,
    paths: Iterable[str],
    *,
    cancel: Cancel,
    moved: Callable[[int], None],
    silence: float = 30.0,
) -> None:
    """Bring `paths`, relative to `folder`, to the folder `there` by rsync over the session; `moved` hears of every
    count of bytes.

    `there` travels inside rsync's protocol (--secluded-args), so no shell ever reads it. A relative one would not stay
    a path: "node::module" is a daemon that asks for a password. $RSYNC_* stays out. Raises HostFailed with what rsync
    said, ConnectError(lost) after `silence` seconds without a byte, Interrupted.
    """
    name = session.host.name
    if not there.startswith("/"):
        raise ProtocolError(f"{there[:60]!r} where an absolute path belongs", name)
    # to rsync a name that begins with # or ; is a comment
    names = b"".join(b"./" + path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    bridge = _Bridge(session, ours, moved)
    client = files("fleet") / "transport" / "rsh_client.py"
    shell = " ".join(map(_rsh_quote, [sys.executable, "-I", "-S", str(client), str(theirs.fileno())]))  # noqa: TID251
    with theirs, tempfile.TemporaryFile() as listed:
        listed.write(names)
        listed.seek(0)
        process = subprocess.Popen(
            ["rsync", "--secluded-args", *OPTIONS, *options, "-e", shell, "--", f"{folder}/", f"node:{local(there)}/"],
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
        if bridge.error is not None:
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
                raise silent(name, silence) from None
    listener.join(2.0)
    return b"".join(said)


def _rsh_quote(word: str) -> str:
    """rsync splits -e at blanks and knows '...' and "..." around words, with a doubled quote for the quote."""
    return "'" + word.replace("'", "''") + "'"
