"""Receives a stream over a link: listens on the data address, and accepts only the predecessor of this transfer."""

import errno
import hmac
import os
import select
import socket
import ssl
import threading
import time
from contextlib import suppress

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any
from fleet.node.base.wire import start_thread
from fleet.node.delivery.chain.link import CHUNK, NONSENSE, Link, link_token, shut, tls_context
from fleet.node.delivery.head import fail
from fleet.node.delivery.store import Store
from fleet.node.delivery.stream import Stopped

GATHER_SECONDS = 0.005
STRANGERS_AT_ONCE = 64


def addresses_to_bind(wanted: str) -> "list[Any]":
    """Returns addresses of this node to listen on, as getaddrinfo() does, the best first: those of `wanted`, the data
    address, then the one that SSH connected to."""
    came_in = os.environ.get("SSH_CONNECTION", "").split()
    found: list[Any] = []
    with suppress(OSError):
        for info in socket.getaddrinfo(wanted, 0, type=socket.SOCK_STREAM):
            if info not in found:
                found.append(info)
    loopback = [i for i in found if i[4][0].startswith("127.") or i[4][0] == "::1"]
    if came_in and not (came_in[2].startswith("127.") or came_in[2] == "::1"):
        # Debian's /etc/hosts gives a machine's own name a loopback address, which no other machine reaches
        found = [i for i in found if i not in loopback]
    if len(came_in) == 4:
        found += socket.getaddrinfo(came_in[2].split("%")[0], 0, type=socket.SOCK_STREAM)
    return found


def listen_on(wanted: str) -> "socket.socket":
    """Returns a socket that listens on one of addresses_to_bind(wanted). Raises Refused if no interface has one."""
    for family, kind, _protocol, _name, address in addresses_to_bind(wanted):
        listener = socket.socket(family, kind)
        try:
            listener.bind(address)
            listener.listen(64)
            return listener
        except OSError:
            listener.close()
    raise Refused(
        "no interface here has the data address %s" % wanted,
        "set data_address in the inventory to an address of this host",
    )


class Receiver:
    """Accepts links, and writes to the store what the newest valid link sends, until the program ends. wanted: the data
    address. epoch, link: number of the newest link, and the link. strangers: connections that are not admitted yet.
    slow: whether data comes slowly, see gather()."""

    def __init__(self, store: "Store", tls: "dict[str, str]", token: str, wanted: str) -> None:
        self.store, self.tls, self.token = store, tls, token
        self.context = tls_context(True, tls)
        self.listener = listen_on(wanted)
        self.strangers: list[socket.socket] = []
        self.lock = threading.Lock()
        self.epoch = 0
        self.link: Link | None = None
        self.slow = True

    def accept_forever(self) -> None:
        while True:
            try:
                plain = self.listener.accept()[0]
            except OSError:  # too many open files, for instance
                time.sleep(0.1)
                continue
            with self.lock:
                self.strangers.append(plain)
                # too many strangers: the oldest is closed, as a predecessor is admitted after few packets
                if len(self.strangers) > STRANGERS_AT_ONCE:
                    shut(self.strangers.pop(0))
            start_thread(self.admit, plain)

    def admit(self, plain: "socket.socket") -> None:
        try:
            link = Link(plain, self.context, True, self.tls)
            hello = link.read_line(4096)
            epoch = int(hello["epoch"])
            if not hmac.compare_digest(str(hello.get("token")), link_token(self.token, epoch)):
                raise OSError(errno.EACCES, "a wrong token")
            with self.store.ready:
                if epoch <= self.epoch:
                    raise OSError(errno.ESTALE, "an older link")
                before, self.epoch, self.link = self.link, epoch, link
                self.store.ready.notify_all()
            if before is not None:
                shut(before.sock)
        except (OSError,) + NONSENSE:
            plain.close()
        finally:
            with self.lock:
                if plain in self.strangers:
                    self.strangers.remove(plain)

    def receive_forever(self) -> None:
        epoch = 0
        buffer = memoryview(bytearray(CHUNK))
        while True:
            with self.store.ready:
                while self.epoch == epoch:
                    self.store.ready.wait(1.0)
                link, epoch = self.link, self.epoch
                assert link
                self.store.from_another(epoch)
            with suppress(OSError, Stopped), link.sock:
                self.serve(link, epoch, buffer)

    def serve(self, link: "Link", epoch: int, buffer: memoryview) -> None:
        while True:
            wants = self.next_wants(epoch)
            link.sock.settimeout(None)
            link.send_line({"wants": wants})
            link.sock.settimeout(0.0)
            if not wants:
                return
            for begin, end in wants:
                while begin < end:
                    data = self.gather(link, buffer[: min(CHUNK, end - begin)])
                    try:
                        self.store.put(begin, data)
                    except OSError as error:  # the disk failed, not the link
                        fail(error)
                    begin += len(data)

    def gather(self, link: "Link", room: memoryview) -> memoryview:
        """Returns the received data, at most the size of `room`. Waits until there is data.

        On a slow link each packet would wake this process: each TLS record of 16 KiB would cost a write and a wake-up,
        on this node and on each later member. So this reads only GATHER_SECONDS after the first packet. It does not
        wait longer, because each member's wait delays all members after it.
        """
        count = 0
        if not link.sock.pending():
            select.select([link.sock], [], [])
            if self.slow:
                time.sleep(GATHER_SECONDS)
        while count < len(room):
            try:
                got = link.sock.recv_into(room[count:])
            except ssl.SSLWantReadError:
                break
            if not got:
                raise OSError(errno.ECONNRESET, "closed")
            count += got
        self.slow = count < CHUNK // 4
        return room[:count]

    def next_wants(self, epoch: int) -> "list[list[int]]":
        """Returns the ranges to request. Returns [] when every file is in place or given up. Waits while files are
        being verified. Raises Stopped if there is a newer link than `epoch`."""
        with self.store.ready:
            while True:
                wants = self.store.wants()
                if wants or self.store.settled():
                    return wants
                if self.epoch != epoch:
                    raise Stopped()
                self.store.ready.wait(0.5)
