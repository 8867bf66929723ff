"""Opens sessions and channels over an authenticated Link. Every wait has a limit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.node.base.errors import on_failure
from fleet.transport.base import Cancel
from fleet.transport.ssh.adapter import WINDOW_BYTES
from fleet.transport.ssh.dial import Deadline
from fleet.transport.ssh.endpoint import named
from fleet.transport.ssh.gates import lost, pause
from fleet.transport.ssh.hostkeys import HostKey
from fleet.transport.ssh.library import paramiko
from fleet.transport.ssh.link import ChannelRefused, Link
from fleet.transport.ssh.node_channel import NodeChannel
from fleet.transport.streams import Streams

READ_BYTES = 256 * 1024  # most bytes of each stream in one read
SEND_SLICE = 0.2  # seconds for which one send may block
ANSWER_SECONDS = 3.0  # how long answers() waits for the host


class SshChannel(Streams):
    """Carries the three streams of one remote process."""

    def __init__(self, channel: NodeChannel, host: Host) -> None:
        super().__init__(host)
        self._channel = channel
        channel.settimeout(SEND_SLICE)

    def _write(self, data: memoryview) -> int:
        if self._channel.unread() > WINDOW_BYTES // 4:
            self._take_in()
        try:
            sent: int = self._channel.send(data)
        except TimeoutError:
            if self._channel.transport is None or not self._channel.transport.is_active():
                raise self._lost() from None
            return 0
        except Exception as error:
            raise self._lost() from error
        if sent == 0:
            raise self._lost()
        return sent

    def _lost(self) -> FleetError:
        link = self._channel.transport
        return lost(self._host, link.via if isinstance(link, Link) else None)

    def send_eof(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.shutdown_write()
        self._channel.readable.set()  # wakes the reader, which then checks whether to go on

    @property
    def heartbeat_at(self) -> float:
        return self._channel.heartbeat_at

    def ignore_heartbeat(self, heartbeat: bytes) -> None:
        self._channel.ignored_heartbeat = heartbeat

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        readable = self._channel.readable
        if not readable.wait(timeout):
            return None
        readable.reset()
        ended = self._channel.eof_received or self._channel.closed
        try:
            received = self._channel.read_available(READ_BYTES)
        except Exception as error:
            raise self._lost() from error
        if ended or self._channel.unread():
            readable.set()
        link = self._channel.transport
        if any(received):
            return received
        if ended and self._channel.exit_status < 0 and isinstance(link, Link) and link.broken:
            raise self._lost()
        return received if ended else None

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
    """Gives authenticated access to one host. Opens further connections if sshd allows few channels on each
    (MaxSessions).

    timeout: seconds for the start of a command. open_link: opens a further connection."""

    def __init__(self, host: Host, link: Link, timeout: float, open_link: Callable[[], Link]) -> None:
        self.host = host
        self._links = [link]
        self.address = link.address
        self._timeout = timeout
        self._open_link = open_link

    def start(self, command: str) -> SshChannel:
        # The deadline has a latch of its own, not that of connect(): after Ctrl-C, fleet still starts commands that
        # stop processes.
        deadline = Deadline.after(self._timeout, Cancel())
        with named(self.host):
            channel = self._open_and_exec(command, deadline)
            retries = 1
            # Dropbear closes a new channel at once while the command of an earlier, closed channel still runs
            while not (channel.event_ready or channel.denied) and pause(retries, deadline):
                channel = self._open_and_exec(command, deadline)
                retries += 1
            if channel.event_ready:
                return SshChannel(channel, self.host)
            raise ConnectError(
                "its sshd refuses to run commands", kind="protocol", hint="a restricted account? try 'ssh HOST true'"
            )

    def answers(self) -> bool:
        return self.link.answers(Deadline.after(ANSWER_SECONDS, Cancel()))

    def _open_and_exec(self, command: str, deadline: Deadline) -> NodeChannel:
        """Opens a channel and requests the command. Returns the channel once sshd has replied or closed it."""
        link, channel = self._open(deadline)
        link.post(lambda: channel.request_exec(command), deadline, "the start of a command")
        in_time = deadline.wait(channel.event)
        if not channel.event_ready and not (in_time and link.is_active()):
            raise link.failure(in_time, self._timeout, "the start of a command")
        return channel

    def _open(self, deadline: Deadline) -> tuple[Link, NodeChannel]:
        retries = 0
        unreached: ConnectError | None = None
        while True:
            for link in reversed(self._links):
                try:
                    return link, link.open("session", deadline)
                except ChannelRefused as error:
                    refused = error
            if unreached is None:
                try:
                    return self._open_on_new_link(deadline)
                except ConnectError as error:
                    unreached = error  # no second try: a password, for example, is sent only once
            # sshd counts a closed channel until its command has ended: a later try may succeed
            retries += 1
            if not pause(retries, deadline):
                what = f"{refused.text or 'refused'}; a further connection: {unreached.message}"
                raise self._refused(what) from unreached

    def _open_on_new_link(self, deadline: Deadline) -> tuple[Link, NodeChannel]:
        """Opens a further connection. Returns the connection and a new channel on it."""
        link = self._open_link()
        try:
            with on_failure(link.abort):
                channel = link.open("session", deadline)  # before other threads see the link: sshd may allow one
        except ChannelRefused as error:
            raise self._refused(error.text or "refused") from error
        self._links.append(link)
        return link, channel

    @staticmethod
    def _refused(what: str) -> ConnectError:
        return ConnectError(
            f"its sshd opens no further session: {what}",
            kind="protocol",
            hint="let a connection have more of them: 'MaxSessions 10' in its sshd_config",
        )

    # -- for fabric's tasks, which use paramiko directly --
    @property
    def link(self) -> Link:
        """Returns the newest connection: a paramiko Transport whose host key is verified."""
        return self._links[-1]

    def channel(self) -> NodeChannel:
        """Opens a paramiko channel on which nothing runs yet."""
        return self._open(Deadline.after(self._timeout, Cancel()))[1]

    def sftp(self) -> Any:
        """Opens a paramiko SFTPClient. Raises ConnectError if sshd has no sftp."""
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
        """Returns the verified key of the host."""
        key = self._links[0].server_host_key
        assert key is not None
        return key

    @property
    def is_key_login(self) -> bool:
        """Returns whether the login used a key, not a password."""
        return self._links[0].method == "publickey"

    def close(self) -> None:
        for link in self._links:
            link.abort()
