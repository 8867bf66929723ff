"""Runs `fleet ssh HOST` and `fleet forward HOST PORT`: both run the system's `ssh` in this terminal, over a connection
of the openssh transport."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from fleet.errors import ConnectError, HostFailed, UsageError
from fleet.inventory.fields import FieldError, port
from fleet.inventory.select import select
from fleet.model import Host, Inventory
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.openssh.transport import OpensshSession, OpensshTransport

LOOPBACK = "127.0.0.1"


def one_host(full_inventory: Inventory, operand: str) -> Host:
    """Returns the host that the operand names. Raises UsageError or InventoryError if it names none, or several."""
    hosts = select(full_inventory, operand, None, "HOST").hosts
    if len(hosts) != 1:
        raise UsageError(f"{operand} is {len(hosts)} hosts", hint=f"name one: fleet ssh {hosts[0].name}")
    return hosts[0]


@dataclass(frozen=True)
class Forward:
    """Describes a forwarded port. port: on the host's loopback. local: on this machine."""

    port: int
    local: int

    @classmethod
    def of(cls, text: str) -> Forward:
        """Parses PORT or PORT:LOCAL. Raises UsageError."""
        remote, colon, local = text.partition(":")
        try:
            return cls(port(remote), port(local if colon else remote))
        except FieldError:
            raise UsageError(f"{text}: not PORT or PORT:LOCAL", hint="fleet forward gpu1 6006:16006") from None

    def check(self, host: Host) -> None:
        """Raises UsageError if the port is in use on this machine."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, self.local))
            except OSError as error:
                other = self.local + 10000 if self.local < 55536 else self.local - 10000
                hint = f"fleet forward {host.name} {self.port}:{other}"
                raise UsageError(f"port {self.local} of this machine: {error.strerror}", hint=hint) from None

    @property
    def options(self) -> list[str]:
        return [
            "-O",
            "forward",
            "-o",
            "ClearAllForwardings=no",
            "-L",
            f"{LOOPBACK}:{self.local}:{LOOPBACK}:{self.port}",
        ]


@contextmanager
def connected(host: Host, full_inventory: Inventory, connect_timeout: float) -> Iterator[OpensshSession]:
    """Yields an open session to the host. Raises ConnectError."""
    with (
        closing(OpensshTransport(ConnectOptions(connect_timeout), hosts=full_inventory.hosts, users=True)) as transport,
        closing(transport.connect(host, Cancel())) as session,
    ):
        yield session


def shell(session: OpensshSession, options: Sequence[str], command: Sequence[str]) -> int:
    """Runs ssh until it ends. Returns its exit status, 128+n for signal n. Ctrl-C reaches ssh only."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        argv = session.client(*options, command=command)
        status = subprocess.Popen(argv, preexec_fn=lambda: signal.signal(signal.SIGINT, before)).wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status


def forward(session: OpensshSession, way: Forward) -> None:
    """Forwards a port until Ctrl-C. Raises HostFailed if ssh cannot forward it, and ConnectError when the connection
    ends."""
    if subprocess.run(session.client(*way.options), stdin=subprocess.DEVNULL).returncode:
        raise HostFailed(f"port {way.port} cannot be forwarded", host=session.host.name)
    while not session.ended(1.0):
        pass
    raise ConnectError("the connection ended", host=session.host.name, kind="lost")
