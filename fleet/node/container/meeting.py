"""Where containers meet: one of them listens at the master's port, all others, and itself, dial it, in any order.

Lines of JSON. A member's first is {"fleet": PROTOCOL, "host", "rank", "each", "about"}. It gets {"refused", "hint"}, or
{"begin"} once all are there: the run, which node it is, where its ranks meet. Then the line is how the end of one
becomes the end of all:

    member -> table   {"failed": a FirstFailure, "age": seconds since}, {"ended": {"code", "state", "ranks"}}, {"beat"}
    table -> member   {"failed": the first of all}, {"lost": {"host"}} of an elastic run, {"beat"}

Which failure was the first is decided VERDICT_SECONDS after one is reported: a rank that the first failure took down
may be reported before it. A member that is silent for SILENCE_SECONDS, or whose line ends, is lost: a failure, too,
but in an elastic run.
"""

import socket
import threading
import time

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Callable
from fleet.node.container.line import HELLO_SECONDS, Line
from fleet.node.container.members import Member, ended_of, failure_of, node_of, nodes, shown
from fleet.node.container.record import Record, ending
from fleet.protocol.state import PROTOCOL

BEAT_SECONDS, SILENCE_SECONDS = 3.0, 30.0
LAST_CALL_SECONDS = 15.0  # for which an elastic run that may begin waits for more
VERDICT_SECONDS = 1.0
HURRY_SECONDS = 5.0  # in which others may still report their ends, when the platform ends this container
STRANGERS = 64  # connections that have sent no hello yet
EXIT_LOST = 122


class Table:
    """Of the container that all dial. port: to listen at, 0: any. about: {"job", "least", "most"}, which all must have
    alike. record: of the run. Refused: the port cannot be had."""

    def __init__(self, port: int, about: "dict[str, Any]", record: Record, report: "Callable[[str], None]") -> None:
        self.about, self.record, self.report = about, record, report
        self.members: list[Member] = []
        self.lock, self.begun, self.closed = threading.RLock(), False, False
        self.failures: list[tuple[float, dict[str, Any]]] = []
        self.first: dict[str, Any] | None = None  # of all failures
        self.master = "127.0.0.1"
        self.latest = time.monotonic()
        try:
            self.server = socket.socket()
            self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.server.bind(("", port))
            self.server.listen(STRANGERS)
        except OSError as error:
            raise Refused(
                "port %d cannot be listened at here: %s" % (port, error.strerror),
                "another process of this container has it: give MASTER_PORT another value in all containers",
            ) from None
        self.port = self.server.getsockname()[1]
        self.doors = threading.Semaphore(STRANGERS)
        for work in (self.accept, self.call):
            threading.Thread(target=work, daemon=True).start()

    # -- who comes ----------------------------------------------------------------------------------------
    def accept(self) -> None:
        while True:
            self.doors.acquire()
            try:
                sock, _ = self.server.accept()
            except OSError:  # it was gone again, or there are too many files
                if self.closed:
                    return
                self.doors.release()
                time.sleep(0.1)
                continue
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock: socket.socket) -> None:
        """From a connection's first message to its end."""
        member = None
        try:
            try:
                member = self.enter(Line(sock))
            finally:
                self.doors.release()
            if member is not None:
                self.listen(member)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        finally:
            sock.close()
            if member is not None and not member.over:
                self.leave(member)

    def enter(self, line: Line) -> "Member | None":
        hello = line.receive(HELLO_SECONDS)
        if hello is None or hello.get("fleet") != PROTOCOL:
            return None
        member = Member(line, hello)
        with self.lock:
            why = self.refusal(member)
            if why is None:
                self.take_in(member)
                return member
        line.send(refused=why[0], hint=why[1])
        return None

    def refusal(self, member: Member) -> "tuple[str, str] | None":
        """Why it may not take part; None: it may."""
        if member.about != self.about:
            return (
                "another run answers there: %s; this is %s" % (shown(self.about), shown(member.about)),
                "one MASTER_ADDR and MASTER_PORT for each run, and the same variables in all of its containers",
            )
        there = self.there()
        twin = [it for it in there if it.rank is not None and it.rank == member.rank]
        if twin:
            return (
                "two containers have node rank %s: %s and %s" % (member.rank, twin[0].host, member.host),
                "each container has a rank of its own, from 0 on",
            )
        if len(there) >= self.about["most"]:
            return ("all %d containers are there already" % self.about["most"], "is one of them started twice?")
        if self.begun and not self.elastic:
            return ("the run has begun", "start all containers again, together")
        return None

    def take_in(self, member: Member) -> None:
        names = {it.host for it in self.members}
        if member.host in names:
            numbered = ("%s-%d" % (member.host, number) for number in range(2, 3 + len(names)))
            member.host = next(name for name in numbered if name not in names)
        local = member.line.sock.getsockname()[0]
        if not local.startswith("127."):
            self.master = local
        self.members.append(member)
        self.latest = time.monotonic()
        self.report("%s is there, %d of %s" % (member.host, len(self.there()), nodes(self.about)))
        if self.begun:
            self.number([member])
            self.send_begin([member])

    # -- the beginning ------------------------------------------------------------------------------------
    def call(self) -> None:
        """Begin when all are there, or enough for long enough."""
        while not self.begun and not self.closed:
            time.sleep(0.1)
            with self.lock:
                count = len(self.there())
                late = time.monotonic() > self.latest + LAST_CALL_SECONDS
                if count == self.about["most"] or (count >= self.about["least"] and late):
                    self.begun = True
                    with socket.socket() as probe:
                        probe.bind(("", 0))
                        self.store = probe.getsockname()[1]  # where ranks meet
                    self.begin()

    def begin(self) -> None:
        """With all who are there."""
        self.number(self.members)
        hosts = {it.host: node_of(it) for it in sorted(self.members, key=lambda it: it.node or 0)}
        try:
            self.record.begin(hosts, self.master, self.store)
        except Refused as error:
            for member in self.members:
                self.send(member, refused=error.message, hint=error.hint)
        else:
            self.send_begin(self.members)

    def number(self, members: "list[Member]") -> None:
        """Nodes in the order of their ranks; where none is set, this one first, then by name."""
        taken = {it.rank for it in self.members if it.rank is not None}.union(it.node for it in self.members)
        free = (number for number in range(1 << 20) if number not in taken)
        mine = [it for it in members if it.line.sock.getpeername()[0].startswith("127.")]
        for member in mine + sorted((it for it in members if it not in mine), key=lambda it: it.host):
            member.node = member.rank if member.rank is not None else next(free)
        first = 0
        for member in sorted(members, key=lambda it: it.node or 0):
            member.first, first = first, first + member.each

    def send_begin(self, members: "list[Member]") -> None:
        where = {"run": self.record.run, "master": self.master, "port": self.store, "nodes": len(self.members)}
        for member in members:
            self.send(member, begin=dict(where, host=member.host, node=member.node, first=member.first))

    # -- the end of one, and of all -----------------------------------------------------------------------
    def listen(self, member: Member) -> None:
        """Until its end."""
        while not member.over:
            message = member.line.receive(BEAT_SECONDS)
            if message is None and time.monotonic() > member.line.heard + SILENCE_SECONDS:
                return
            if message is not None and "failed" in message:
                self.blame(failure_of(message["failed"], member), float(message["age"]))
            if message is not None and "ended" in message:
                member.ended = ended_of(message["ended"])
            self.send(member, beat=1)

    def blame(self, failure: "dict[str, Any]", age: float) -> None:
        """Of a failure that came so many seconds ago."""
        with self.lock:
            self.failures.append((time.monotonic() - age, failure))
            if len(self.failures) == 1:
                timer = threading.Timer(VERDICT_SECONDS, self.decide)
                timer.daemon = True
                timer.start()

    def decide(self) -> None:
        with self.lock:
            self.first = min(self.failures, key=lambda it: it[0])[1]
        why = str(self.first["message"])
        self.record.event("stop", why, "error", self.first.get("host"), reason=why, grace=None)
        for member in self.there():
            self.send(member, failed=self.first)

    def leave(self, member: Member) -> None:
        """It is gone, or silent, and has not ended."""
        member.away = True
        if not self.begun:
            with self.lock:
                self.members.remove(member)
            self.report("%s is gone" % member.host)
        elif self.elastic:
            self.record.event("away", "%s is gone; the rest go on" % member.host, "warning", member.host)
            for other in self.there():
                self.send(other, lost={"host": member.host})
        else:
            silent = time.monotonic() - member.line.heard
            how = "silent for %.0f s" % silent if silent > SILENCE_SECONDS else "its connection ended"
            message = "%s (node rank %s) was lost: %s" % (member.host, member.node, how)
            about = {"host": member.host, "node_rank": member.node, "exit_code": EXIT_LOST, "what": "node"}
            self.blame(dict(about, rank=None, signal=None, message=message), silent if silent > SILENCE_SECONDS else 0)

    def close(self) -> None:
        """Nobody comes any more."""
        self.closed = True
        try:
            self.server.shutdown(socket.SHUT_RDWR)  # or accept() goes on waiting
        except OSError:
            pass
        self.server.close()

    def rest(self, seconds: float, hurried: "Callable[[], object]") -> None:
        """Until the end of all is known here, or for so long, HURRY_SECONDS once it is hurried; then write it down."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(it.over for it in self.members):
            time.sleep(0.1)
            if hurried():
                until, hurried = min(until, time.monotonic() + HURRY_SECONDS), bool
        with self.lock:
            members, first = sorted(self.members, key=lambda it: it.node or 0), self.first
        hosts = {it.host: ending(it.node or 0, it.ended, "lost" if it.away else "unknown") for it in members}
        codes = [it.ended["code"] if it.ended else EXIT_LOST for it in members if not (it.away and self.elastic)]
        try:
            self.record.end(first["exit_code"] if first else max(codes, default=EXIT_LOST), hosts, first)
        except OSError as error:
            self.report("the summary in %s cannot be written: %s" % (self.record.path, error.strerror))

    @property
    def elastic(self) -> bool:
        return bool(self.about["least"] != self.about["most"])

    def there(self) -> "list[Member]":
        with self.lock:
            return [it for it in self.members if not it.over]

    def send(self, member: Member, **message: Any) -> None:
        """What does not arrive is found out by listen()."""
        try:
            member.line.send(**message)
        except OSError:
            pass
