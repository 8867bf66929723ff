"""The sending end of a link: dials whom the head names, sends what it asks for."""

import errno
import json
import socket
import ssl
import threading
import time

from fleet.node.base.wire import send_json
from fleet.node.delivery.chain.conversation import worker
from fleet.node.delivery.chain.link import DIAL_SECONDS, Link, Lost, Nonsense, lost, reason_of, tls_context, whole
from fleet.node.delivery.store import CHUNK, Stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from fleet.node.delivery.store import Store
    from fleet.protocol.messages import chain

say: "Callable[[chain.Served | chain.Link], None]" = send_json
ASKS = 5  # how often a successor may need everything anew


class HungUp(Exception):
    """Somebody listens there, and closed the connection before it was a link."""


class Sender:
    """Dials the successor that the head names, sends what it asks for; tells the head how that went."""

    def __init__(self, store: "Store", tls: "dict[str, str]", limit: "Limit | None") -> None:
        self.store, self.tls, self.limit = store, tls, limit
        self.context = tls_context(False, tls)
        self.order = {"epoch": 0}
        self.link: Link | None = None
        self.turn = threading.Lock()
        self.sent = 0
        self.at: int | None = None  # position of the next byte to send, None when idle

    def connect_to(self, order: "dict[str, Any]") -> None:
        with self.store.ready:
            if order["epoch"] <= self.order["epoch"]:
                return
            self.order, link = order, self.link
            self.store.ready.notify_all()
        if link is not None:
            link.abort()
        worker(self.follow, order)

    def follow(self, order: "dict[str, Any]") -> None:
        """Serve one order to its end, or until a newer one comes: that one need not wait while this one dials."""
        link = None
        try:
            link = self.dial_patiently(order)
            with self.turn:
                try:
                    self.send(order, link)
                finally:
                    self.at = None
            say({"event": "served", "epoch": order["epoch"]})
        except Lost as error:
            if self.order is order:
                say(
                    {
                        "event": "link",
                        "epoch": order["epoch"],
                        "connected": link is not None,
                        "nonsense": isinstance(error, Nonsense),
                        "why": error.args[0],
                    }
                )
        except Stopped:
            pass
        finally:
            if link is not None:
                link.sock.close()

    def dial(self, order: "dict[str, Any]") -> "Link":
        """The first address that answers."""
        why = []
        for address, port, *name in order["addresses"]:
            try:
                return Link(socket.create_connection((address, port), DIAL_SECONDS), self.context, False, self.tls)
            except (OSError, ValueError) as error:
                why.append("%s: %s" % (name[0] if name else "%s:%s" % (address, port), reason_of(error)))
                if getattr(error, "errno", None) == errno.ECONNRESET or isinstance(error, ssl.SSLEOFError):
                    raise HungUp("; ".join(why)) from None
        raise Lost("; ".join(why))

    def dial_patiently(self, order: "dict[str, Any]") -> "Link":
        """Strangers may keep the listener busy for a moment: what it hangs up on is tried again."""
        pauses = [0.5, 1.0, 2.0, 4.0]
        while True:
            try:
                return self.dial(order)
            except HungUp as error:
                if not pauses or self.order is not order:
                    raise Lost(error.args[0]) from None
                time.sleep(pauses.pop(0))

    def send(self, order: "dict[str, Any]", link: "Link") -> None:
        def cancelled() -> bool:
            return self.order is not order

        with self.store.ready:
            if cancelled():
                raise Stopped()
            self.link = link
        link.sock.settimeout(None)
        with lost():
            link.send_line({"token": order["token"], "epoch": order["epoch"]})
        room = ASKS * self.store.total
        while True:
            wants = read_wants(link, self.store)
            if not wants:
                return
            room -= sum(end - begin for begin, end in wants)
            if room < 0:
                raise Nonsense("it asks for the same again and again")
            for begin, end in wants:
                while begin < end:
                    self.at = begin
                    chunk = min(CHUNK, self.limit.rate // 8) if self.limit else CHUNK
                    data = self.store.take(begin, min(end, begin + chunk), cancelled)
                    if self.limit:
                        self.limit.spend(len(data))
                    with lost():
                        link.sock.sendall(data)
                    begin += len(data)
                    self.sent += len(data)
            self.at = None  # while the other end verifies


def read_wants(link: "Link", store: "Store") -> "list[tuple[int, int]]":
    """The ranges that the successor asks for, checked: it may be anything."""
    with lost():
        line = link.read_text(1000 + 50 * len(store.files))
    try:
        said = json.loads(line.decode(), parse_int=whole)
        wants = [(begin, end) for begin, end in said["wants"]]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise Nonsense("it asks for what is no range") from None
    flat = [0] + [place for pair in wants for place in pair] + [store.total]
    if not all(type(place) is int for place in flat) or flat != sorted(flat) or any(a == b for a, b in wants):
        raise Nonsense("it asks for what is no range")
    return wants


class Limit:
    """A token bucket: bytes a second, a quarter of a second's worth at once."""

    def __init__(self, rate: int) -> None:
        self.rate, self.tokens, self.then = rate, 0.0, time.monotonic()

    def spend(self, count: int) -> None:
        while count > 0:
            now = time.monotonic()
            self.tokens = min(self.rate / 4, self.tokens + (now - self.then) * self.rate)
            self.then = now
            if self.tokens < 1:
                time.sleep(min(0.05, 1 / self.rate + 0.005))
                continue
            piece = min(count, int(self.tokens))
            self.tokens -= piece
            count -= piece
