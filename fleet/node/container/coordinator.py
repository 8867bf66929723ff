"""Leads a run of containers, as a separate process in the container where all meet. One loop over the connections
drives the rule of fleet/node/gang, as a head does. This process begins each attempt, makes all stop, decides how the
run ended, and writes runs/RUN.

spec, one line on stdin: {"run", "runs", "started", "about": {"job", "least", "most"}, "port", "secret", "engine",
"grace", "stop_grace", "node_timeout", "max_restarts", "stall_timeout"}. "runs": the folder of runs; "started": fields
of run.json; "secret": in hexadecimal; "grace": seconds after a failure; "stop_grace": seconds after the platform's
signal. This process prints one line: {"port"}, or {"refused", "hint"}. It ends with the run. If its parent ends before
the run begins, which closes stdin, it ends, too.

    member -> here   a hello, or {"token"} after its connection broke; {"beat", "silent": seconds since its ranks wrote
                     anything}; reports, see news.py
    here -> member   {"refused", "hint"}, {"token"}, {"beat"}, {"start": see Part}, {"op": "stop", "over" or
                     "renew-ranks", as for run.follow}, {"stacks"}, {"verdict", "why"}
"""

import os
import select
import sys

from fleet.node.base import json
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any
from fleet.node.container.leading import Leading
from fleet.node.container.news import NONSENSE, checked_report, time
from fleet.node.container.record import Kept, report
from fleet.node.container.roll import Member, Roll
from fleet.node.container.server import Connection, Server

TICK = 0.2
BEAT_SECONDS = 2.0  # between two heartbeats
RESUME_SECONDS = 5.0  # so long a container may take to come back after its connection broke


class Coordinator:
    """Passes the server's events to the rule. spec: see above. server: already listens. record: writes runs/RUN."""

    def __init__(self, spec: "dict[str, Any]", server: Server, record: Kept, clock: Clock = CLOCK) -> None:
        self.spec, self.server, self.record, self.clock = spec, server, record, clock
        self.roll = Roll(spec["about"])
        self.leading = Leading(spec, self.roll, record, self.send, clock)
        self._by: dict[Connection, Member] = {}
        self._beat = clock.monotonic()

    def run(self, parent: "int | None" = None) -> None:
        """Works until the run has ended. parent: a descriptor that is at its end once the parent process is gone."""
        while not self.leading.over:
            for kind, connection, what in self.server.turn(TICK):
                self.happened(kind, connection, what)
            now = self.clock.monotonic()
            if now >= self._beat + BEAT_SECONDS:
                self._beat = now
                self.record.sign()
                for member in self.roll.members:
                    self.send(member, beat=1)
            self.look_for_silence(now)
            self.leading.phase(now)
            if not self.roll.begun and parent is not None and is_over(parent):
                break
        self.server.close()

    def happened(self, kind: str, connection: Connection, what: Any) -> None:
        member = self._by.get(connection)
        if kind == "refused":
            report("%s: %s" % (connection.address, what))
        elif kind == "gone":
            if member is not None:
                self.lose_connection(member)
        elif member is not None:
            try:
                if "beat" not in what:
                    self.leading.receive(member, checked_report(what), self.clock.time())
                elif what.get("silent") is not None:
                    member.spoke = self.clock.monotonic() - time(what["silent"])
            except NONSENSE:  # not fleet sent this: the connection ends
                connection.close()
                self.lose_connection(member)
        else:
            try:
                self.enter(connection, what)
            except NONSENSE:
                connection.close()

    def enter(self, connection: Connection, hello: "dict[str, Any]") -> None:
        now = self.clock.monotonic()
        known = self.roll.of(hello["token"]) if "token" in hello else None
        if known is not None:
            self._by.pop(known.connection, None)
            known.connection.close()
            known.connection, known.gone = connection, None
            self.admit(known)
            self.leading.resumed(known)
            return
        member = Member(connection, hello)
        why = self.roll.refusal(member)
        if why is not None:
            report("%s at %s was refused: %s" % (member.host, connection.address, why[0]))
            connection.refuse(*why)
            return
        self.roll.take_in(member, now)
        self.admit(member)
        self.send(member, token=member.token)
        there, about = sum(it.there for it in self.roll.members), self.roll.about
        if about["most"] > 1:
            of = "%d to %d" % (about["least"], about["most"]) if self.roll.elastic else str(about["most"])
            report("%s is there, %d of %s" % (member.host, there, of))
        self.leading.came(member)

    def admit(self, member: Member) -> None:
        member.connection.admitted = True
        self._by[member.connection] = member

    def lose_connection(self, member: Member) -> None:
        self._by.pop(member.connection, None)
        member.gone = self.clock.monotonic()
        if not self.roll.begun:
            self.roll.members.remove(member)
            report("%s is gone" % member.host)

    def look_for_silence(self, now: float) -> None:
        """Gives up members that have sent nothing for `node_timeout` seconds, or that did not connect again within
        RESUME_SECONDS after their connection broke."""
        patience = self.spec["node_timeout"]
        for member in self.roll.members if self.roll.begun else ():
            silent = now - member.connection.received_at
            if member.gone is not None and now >= member.gone + RESUME_SECONDS:
                self.leading.lose(member, "its connection ended", silent)
            elif member.gone is None and silent >= patience:
                self._by.pop(member.connection, None)
                member.connection.close()
                member.gone = now - RESUME_SECONDS
                self.leading.lose(member, "silent for %.0f s" % silent, silent)

    def send(self, member: Member, **message: Any) -> None:
        member.connection.send(message)


def is_over(file: int) -> bool:
    """Returns whether the other end of a pipe is closed."""
    return bool(select.select([file], [], [], 0)[0]) and not os.read(file, 1)


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    try:
        secret = spec["secret"] and bytes.fromhex(spec["secret"])
        server = Server(spec["port"], secret, CLOCK)
    except Refused as error:
        message: dict[str, Any] = {"refused": error.message, "hint": error.hint}
    else:
        message = {"port": server.port}
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
    if "port" in message:
        Coordinator(spec, server, Kept(spec["runs"], spec["run"], spec["started"])).run(sys.stdin.fileno())
