"""Sends a stream over a link: connects to the host that the head names, and sends the ranges that this host requests.
The head also uses this module, when it is the source."""

import errno
import socket
import threading
import time
from functools import partial

from fleet.node.base.types import TYPE_CHECKING, Callable, chain
from fleet.node.base.wire import start_thread
from fleet.node.delivery.chain.link import CHUNK, NONSENSE, Link, reason_of, tls_context
from fleet.node.delivery.stream import Stopped, Stream

if TYPE_CHECKING:
    Way = tuple[str, Callable[[], socket.socket]]  # a name for messages, and a function that connects

DIAL_SECONDS = 3.0
ASKS = 5  # a successor may request at most this many times the stream's length


def way(address: str, port: int) -> "Way":
    return "%s:%s" % (address, port), partial(socket.create_connection, (address, port), DIAL_SECONDS)


class Sender:
    """Sends the stream to one successor: that of the last connect_to(). report: called with the message about a failed
    link. epoch: number of the link. sent: bytes so far."""

    def __init__(
        self,
        stream: "Stream",
        tls: "dict[str, str]",
        report: "Callable[[chain.Link], None]",
        limit: "Limit | None" = None,
    ) -> None:
        self.stream, self.tls, self.report, self.limit = stream, tls, report, limit
        self.context = tls_context(False, tls)
        self.epoch = 0
        self.sent = 0
        self.at: int | None = None  # position of the next byte to send, None when idle

    def connect_to(self, epoch: int, token: str, ways: "list[Way]") -> None:
        self.epoch = epoch
        start_thread(self.follow, epoch, token, ways)

    def follow(self, epoch: int, token: str, ways: "list[Way]") -> None:
        """Sends to one successor, until the successor has all, or a newer one replaces it. Runs in its own thread, so
        that a new successor need not wait until this one has connected. ways: how to connect, tried in order."""
        link = None
        try:
            link = self.dial(ways)
            self.serve(link, epoch, token)
        except Stopped:
            pass
        except OSError as error:
            self.complain(epoch, "lost" if link else "unreachable", reason_of(error))
        except NONSENSE:
            self.complain(epoch, "protocol", "it asks for what is no range")
        finally:
            if link is not None:
                link.sock.close()

    def complain(self, epoch: int, kind: "chain.Trouble", why: str) -> None:
        if self.epoch == epoch:
            self.report({"event": "link", "epoch": epoch, "kind": kind, "why": why})

    def dial(self, ways: "list[Way]") -> "Link":
        """Returns a link by the first of the ways that connects. Raises OSError if none connects."""
        why = []
        for name, connect in ways:
            try:
                return Link(connect(), self.context, False, self.tls)
            except OSError as error:
                why.append("%s: %s" % (name, reason_of(error)))
        raise OSError(errno.EHOSTUNREACH, "; ".join(why))

    def serve(self, link: "Link", epoch: int, token: str) -> None:
        def cancelled() -> bool:
            return self.epoch != epoch

        link.sock.settimeout(None)
        link.send_line({"token": token, "epoch": epoch})
        room = ASKS * self.stream.total
        while True:
            wants = self.read_wants(link)
            if not wants:
                return
            room -= sum(end - begin for begin, end in wants)
            if room < 0:
                raise ValueError("it asks for the same again and again")
            for begin, end in wants:
                while begin < end:
                    if cancelled():
                        raise Stopped()
                    self.at = begin
                    chunk = self.limit.chunk if self.limit else CHUNK
                    data = self.stream.take(begin, min(end, begin + chunk), cancelled)
                    if self.limit:
                        self.limit.spend(len(data))
                    link.sock.sendall(data)
                    begin += len(data)
                    self.sent += len(data)
            self.at = None  # nothing to send while the successor verifies its files

    def read_wants(self, link: "Link") -> "list[tuple[int, int]]":
        """Returns the ranges that the successor requests. Checks them, as a successor may send anything. Raises OSError
        if the link is lost, and one of NONSENSE for an invalid request."""
        wants = [(begin, end) for begin, end in link.read_line(1000 + 50 * self.stream.count)["wants"]]
        flat = [0] + [place for pair in wants for place in pair] + [self.stream.total]
        if not all(type(place) is int for place in flat) or flat != sorted(flat) or any(a == b for a, b in wants):
            raise ValueError("no ranges")
        return wants


class Limit:
    """Limits the bytes per second that several senders send together."""

    def __init__(self, rate: int) -> None:
        self.rate, self.chunk = rate, max(1, min(CHUNK, rate // 8))
        self.due = 0.0  # when the next byte may go
        self.lock = threading.Lock()

    def spend(self, count: int) -> None:
        with self.lock:
            now = time.monotonic()
            wait = self.due - now
            self.due = max(now, self.due) + count / self.rate
        time.sleep(max(0.0, wait))
