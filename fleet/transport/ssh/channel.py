"""Sessions and channels over an authenticated Link; every wait is bounded."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport.base import EARLY_BYTES, SEND_PATIENCE, ByBoth, Cancel, reads_nothing
from fleet.transport.ssh.adapter import WINDOW_BYTES
from fleet.transport.ssh.dial import Deadline
from fleet.transport.ssh.endpoint import named
from fleet.transport.ssh.gates import lost
from fleet.transport.ssh.hostkeys import HostKey
from fleet.transport.ssh.library import paramiko
from fleet.transport.ssh.link import ChannelRefused, Link
from fleet.transport.ssh.node_channel import NodeChannel

READ_BYTES = 256 * 1024
SEND_SLICE = 0.2
SETTLE_SECONDS = 0.2


class SshChannel(ByBoth):
    """One remote process. recv, send and wait may be called from different threads."""

    def __init__(self, channel: NodeChannel, host: Host) -> None:
        self._channel = channel
        self._host = host
        self._read_lock = threading.Lock()
        self._early = bytearray(), bytearray()  # stdout, stderr
        channel.settimeout(SEND_SLICE)

    def send(self, data: bytes) -> None:
        """Blocks while the peer takes nothing. What the peer writes meanwhile is taken in, so that a program
        which writes before it reads on cannot make both wait for ever."""
        view = memoryview(data)
        moved = time.monotonic()
        while view:
            if self._channel.unread() > WINDOW_BYTES // 4:
                self._take_in()
            try:
                sent = self._channel.send(view)
            except TimeoutError:
                if time.monotonic() - moved >= SEND_PATIENCE:
                    raise reads_nothing(self._host) from None
                self._take_in()
                continue
            except Exception as error:
                raise self._lost() from error
            if sent == 0:
                raise self._lost()
            view = view[sent:]
            moved = time.monotonic()

    def _take_in(self) -> None:
        if self._channel.transport is None or not self._channel.transport.is_active():
            raise self._lost()
        if self._read_lock.acquire(blocking=False):
            try:
                while self._channel.unread() and sum(map(len, self._early)) < EARLY_BYTES:
                    for early, data in zip(self._early, self._channel.taken(READ_BYTES), strict=True):
                        early += data
            finally:
                self._read_lock.release()

    def _lost(self) -> FleetError:
        link = self._channel.transport
        return lost(self._host, link.via if isinstance(link, Link) else None)

    def send_eof(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.shutdown_write()

    def recv_both(self, timeout: float) -> tuple[bytes, bytes] | None:
        bell = self._channel.bell
        with self._read_lock:
            if not any(self._early) and not bell.wait(timeout):
                return None
            bell.quiet()
            ended = self._channel.eof_received or self._channel.closed
            try:
                new = self._channel.taken(READ_BYTES)
            except Exception as error:
                raise self._lost() from error
            if ended or self._channel.unread():
                bell.set()
            out, err = (bytes(early) + data for early, data in zip(self._early, new, strict=True))
            self._early = bytearray(), bytearray()
        link = self._channel.transport
        if out or err:
            return out, err
        if ended and self._channel.exit_status < 0 and isinstance(link, Link) and link.broken:
            raise self._lost()
        return (b"", b"") if ended else None

    def wait(self, timeout: float) -> int | None:
        self._channel.status_event.wait(timeout)
        status: int = self._channel.exit_status
        return status if status >= 0 else None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            link = self._channel.transport
            if isinstance(link, Link) and link.is_active():
                link.quietly(self._channel.close)


class SshSession:
    """Authenticated access to one host: a connection, and more of them where sshd allows few channels on one
    (MaxSessions). more: opens another."""

    def __init__(self, host: Host, link: Link, timeout: float, more: Callable[[], Link]) -> None:
        self.host = host
        self._links = [link]
        self.address = link.address
        self._timeout = timeout
        self._more = more

    def start(self, command: str, *, with_stderr: bool = False) -> SshChannel:
        with named(self.host):
            return self._start(command)

    def _start(self, command: str, again: bool = True) -> SshChannel:
        # not the cancel of connect(): after a Ctrl-C this is how things are stopped in good order
        deadline = Deadline.after(self._timeout, Cancel())
        link, channel = self._open(deadline)
        link.post(lambda: channel.ask(command), deadline, "the start of a command")
        in_time = deadline.wait(channel.event)
        if channel.event_ready:
            return SshChannel(channel, self.host)
        if not in_time or not link.is_active():
            raise link.failure(in_time, self._timeout, "the start of a command")
        if again:  # Dropbear closes a channel at once that is opened while the command of a closed one still ends
            time.sleep(SETTLE_SECONDS)
            return self._start(command, again=False)
        raise ConnectError(
            "its sshd refuses to run commands", kind="protocol", hint="a restricted account? try 'ssh HOST true'"
        )

    def _open(self, deadline: Deadline) -> tuple[Link, NodeChannel]:
        for link in reversed(self._links):
            try:
                return link, link.open("session", deadline)
            except ChannelRefused as error:
                refused = error
        try:
            link = self._more()
            self._links.append(link)
            return link, link.open("session", deadline)
        except (ConnectError, ChannelRefused):
            raise ConnectError(
                f"its sshd opens no further session: {refused.text or 'refused'}",
                kind="protocol",
                hint="let a connection have more of them: 'MaxSessions 10' in its sshd_config",
            ) from refused

    # -- for what speaks paramiko itself: fabric's tasks --
    @property
    def link(self) -> Link:
        """The verified connection, a paramiko Transport."""
        return self._links[-1]

    def channel(self) -> NodeChannel:
        """A paramiko channel on which nothing runs yet."""
        return self._open(Deadline.after(self._timeout, Cancel()))[1]

    def sftp(self) -> Any:
        """A paramiko SFTPClient."""
        channel = self.channel()
        try:
            channel.invoke_subsystem("sftp")
        except paramiko.SSHException as error:
            raise ConnectError(
                "its sshd has no sftp",
                kind="protocol",
                host=self.host.name,
                hint="let it have one: 'Subsystem sftp internal-sftp' in its sshd_config",
            ) from error
        return paramiko.SFTPClient(channel)

    @property
    def host_key(self) -> HostKey:
        """The verified key of the host at the other end."""
        key = self._links[0].server_host_key
        assert key is not None
        return key

    @property
    def by_key(self) -> bool:
        """A key let it in, not a password."""
        return self._links[0].method == "publickey"

    def close(self) -> None:
        for link in self._links:
            link.abort()
