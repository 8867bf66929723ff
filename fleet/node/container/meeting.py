"""Where containers meet: one of them listens at the master's port, all others dial it, in any order.

Lines of JSON. A member says who it is; it is refused, or hears who is waited for, and at last that the run begins, as
which node, and where its ranks meet. From then on the line is how the end of one becomes the end of all: what a member
says of its end goes to all others. A member that is silent for SILENCE_SECONDS is lost.
"""

import socket
import threading
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Callable

LINE_BYTES, BEAT_SECONDS, SILENCE_SECONDS = 1 << 16, 3.0, 30.0
HELLO_SECONDS, DIAL_SECONDS = 5.0, 3.0
LAST_CALL_SECONDS = 15.0  # for which an elastic run that may begin waits for more
STRANGERS = 64


class Line:
    """A connection of one of them to the other. heard: when it last said anything."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.rest, self.heard = sock, b"", time.monotonic()
        self.lock = threading.Lock()

    def say(self, **message: Any) -> None:
        """OSError where it is gone."""
        with self.lock:
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, seconds: float) -> "dict[str, Any] | None":
        """The next message; None: none within so long. OSError: it is gone; ValueError: no message."""
        self.sock.settimeout(seconds)
        while b"\n" not in self.rest:
            if len(self.rest) > LINE_BYTES:
                raise ValueError("a line without an end")
            try:
                data = self.sock.recv(1 << 14)
            except socket.timeout:
                return None
            if not data:
                raise OSError("closed")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        self.heard = time.monotonic()
        message = json.loads(line.decode("utf-8"))
        if not isinstance(message, dict):
            raise ValueError("no message")
        return message


class Member:
    """What a container says of itself."""

    def __init__(self, line: Line, said: "dict[str, Any]") -> None:
        rank = said.get("rank")
        self.line, self.host = line, str(said["host"])[:64]
        self.rank: int | None = int(rank) if rank is not None else None
        self.each, self.about = int(said["each"]), said["about"]
        self.node: int | None = None
        self.over = False


class Table:
    """Of the container that all others dial. about: {"job", "least", "most"}, which all must have alike."""

    def __init__(self, port: int, about: "dict[str, Any]", run: str, say: "Callable[[str], None]") -> None:
        self.about, self.run, self.say = about, run, say
        self.members: list[Member] = []
        self.lock, self.begun = threading.RLock(), False
        self.master: str | None = None
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
        self.doors = threading.Semaphore(STRANGERS)
        for work in (self.accept, self.call):
            threading.Thread(target=work, daemon=True).start()

    def accept(self) -> None:
        while True:
            self.doors.acquire()
            sock, _ = self.server.accept()
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock: socket.socket) -> None:
        line, member = Line(sock), None
        try:
            said = line.hear(HELLO_SECONDS)
            if said is None or said.get("fleet") != 1:
                return
            member = Member(line, said)
            why = self.enter(member, sock)
            if why is not None:
                line.say(refused=why[0], hint=why[1])
                member = None
                return
            self.listen(member)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        finally:
            sock.close()
            self.doors.release()
            if member is not None and not member.over:
                self.leave(member)

    def enter(self, member: Member, sock: socket.socket) -> "tuple[str, str] | None":
        """Why it may not; None: it may."""
        with self.lock:
            if member.about != self.about:
                return (
                    "another run answers there: %s; this is %s" % (shown(self.about), shown(member.about)),
                    "one MASTER_ADDR and MASTER_PORT for each run, and the same variables in all of its containers",
                )
            there = [it for it in self.members if not it.over]
            twin = [it for it in there if it.rank is not None and it.rank == member.rank]
            if twin:
                return (
                    "two containers have node rank %s: %s and %s" % (member.rank, twin[0].host, member.host),
                    "each container has a rank of its own, from 0 on",
                )
            if len(there) >= self.about["most"]:
                return ("all %d containers are there already" % self.about["most"], "is one of them started twice?")
            if self.begun and self.about["least"] == self.about["most"]:
                return ("the run has begun", "start all containers again, together")
            names = [it.host for it in self.members]
            if member.host in names:
                member.host = "%s-%d" % (member.host, 1 + len(names))
            local = sock.getsockname()[0]
            if not local.startswith("127."):
                self.master = local
            self.members.append(member)
            self.latest = time.monotonic()
            self.say("%s is there, %d of %s" % (member.host, len(there) + 1, nodes(self.about)))
            if self.begun:
                self.begin([member])
            return None

    def call(self) -> None:
        """Begin when all are there, or enough for long enough; say who is missed until then."""
        while not self.begun:
            time.sleep(0.1)
            with self.lock:
                count = len([it for it in self.members if not it.over])
                late = time.monotonic() > self.latest + LAST_CALL_SECONDS
                if count == self.about["most"] or (count >= self.about["least"] and late):
                    self.begun = True
                    self.begin(self.members)

    def begin(self, members: "list[Member]") -> None:
        """Nodes in the order of their ranks; where none is told, this one first, then by name."""
        if members is self.members:
            with socket.socket() as probe:
                probe.bind(("", 0))
                self.port = probe.getsockname()[1]
        taken = {it.rank for it in self.members if it.rank is not None}
        free = (number for number in range(1 << 20) if number not in taken and number not in self.nodes())
        mine = [it for it in members if it.line.sock.getpeername()[0].startswith("127.")]
        for member in mine + sorted((it for it in members if it not in mine), key=lambda it: it.host):
            member.node = member.rank if member.rank is not None else next(free)
        first = 0
        for member in sorted(members, key=lambda it: it.node or 0):
            where = {"master": self.master or "127.0.0.1", "port": self.port, "nodes": len(self.members)}
            try:
                member.line.say(begin=dict(where, run=self.run, host=member.host, node=member.node, first=first))
            except OSError:
                pass  # listen() finds out
            first += member.each

    def nodes(self) -> "set[int | None]":
        return {it.node for it in self.members}

    def listen(self, member: Member) -> None:
        """What it says of its end goes to all others."""
        while True:
            said = member.line.hear(BEAT_SECONDS)
            if said is None and time.monotonic() > member.line.heard + SILENCE_SECONDS:
                return
            for word in ("failed", "ended"):
                if said is not None and word in said:
                    member.over = member.over or word == "ended"
                    self.tell(member, **{word: dict(said[word], host=member.host)})
            if member.over:
                return
            member.line.say(beat=1)

    def rest(self, seconds: float) -> None:
        """Until the end of all is known here, so that each hears of the others'."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(it.over for it in self.members):
            time.sleep(0.1)

    def leave(self, member: Member) -> None:
        member.over = True
        if self.begun:
            self.tell(member, lost={"host": member.host})
        else:
            with self.lock:
                self.members.remove(member)
            self.say("%s is gone" % member.host)

    def tell(self, of: Member, **message: Any) -> None:
        with self.lock:
            others = [it for it in self.members if it is not of and not it.over]
        for member in others:
            try:
                member.line.say(**message)
            except OSError:
                pass


def nodes(about: "dict[str, Any]") -> str:
    return str(about["most"]) if about["least"] == about["most"] else "%d to %d" % (about["least"], about["most"])


def shown(about: "dict[str, Any]") -> str:
    return "%s, of %s nodes" % (str(about.get("job") or "without a name")[:60], nodes(about))


def is_here(address: str) -> bool:
    """Whether a name or address is this machine's own."""
    try:
        found = socket.getaddrinfo(address, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        with socket.socket() as probe:
            probe.bind((found, 0))
            return True
    except OSError:
        return False


def dial(
    address: str, port: int, hello: "dict[str, Any]", wait: float, say: "Callable[[str], None]"
) -> "tuple[Line, dict[str, Any]]":
    """(the line, what the run begins with). Refused where it does not within `wait` seconds, or may not."""
    until, told, why, line = time.monotonic() + wait, 0.0, "", None
    where = "%s:%d" % (address, port)
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise Refused("within %g s no run began at %s: %s" % (wait, where, why or "others are missing"), MISSED)
        try:
            if line is None:
                line = Line(socket.create_connection((address, port), DIAL_SECONDS))
                line.say(fleet=1, **hello)
            said = line.hear(min(HELLO_SECONDS, left))
        except socket.gaierror as error:
            line, why = None, "%s does not resolve: %s" % (address, error.strerror)
        except ValueError:
            raise Refused("what answers at %s is no fleet" % where, "MASTER_PORT is another program's") from None
        except OSError as error:
            line, why = None, "nothing listens there (%s)" % (error.strerror or error)
        else:
            if said is None:
                line.say(beat=1)
                why = "others are missing"
            elif "refused" in said:
                raise Refused(str(said["refused"]), str(said.get("hint")))
            elif "begin" in said:
                return line, said["begin"]
        if line is None:
            if time.monotonic() > told + 10:
                told = time.monotonic()
                say("waiting for %s, which begins first: %s" % (where, why))
            time.sleep(0.5)


MISSED = "is the container of MASTER_ADDR there, and does its network lead to the others?"
