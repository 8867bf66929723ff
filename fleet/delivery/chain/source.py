"""Sends the files of a broadcast: from this machine, or from a node that has them (node/delivery/chain/first)."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.background import unattended
from fleet.delivery.chain.judge import DEATH_SECONDS
from fleet.delivery.chain.member import Member, Outbox
from fleet.delivery.chain.order import HERE
from fleet.delivery.manifest import Manifest
from fleet.delivery.tree import Tree, received_tree
from fleet.errors import FleetError, HostFailed, Interrupted, ProtocolError, Reason, UsageError
from fleet.node.base.errors import on_failure
from fleet.node.base.wire import in_parts
from fleet.node.delivery.chain.link import link_token
from fleet.node.delivery.chain.send import way
from fleet.node.delivery.chain.source import Source as Reader
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.chain import Entry, FirstMessage, FirstSpec, Link
from fleet.transport.base import Cancel, Channel, Session, Watchdog
from fleet.transport.frames import after_preamble
from fleet.transport.program import Program, bootstrap, packed

if TYPE_CHECKING:
    from fleet.node.delivery.chain.send import Way

EVERY_SECONDS = 0.2  # between two reports of a node that sends its files
SILENCE_SECONDS = DEATH_SECONDS
FILES_AT_ONCE = 5000  # most files in one request for digests
POLL_SECONDS = 0.5


class HeadSource(Reader):
    """Sends files from this machine. roots: the path of each source."""

    name = HERE

    def __init__(self, manifest: Manifest, roots: Sequence[Path], tls: dict[str, str], limit: int | None) -> None:
        super().__init__(manifest.files, [bytes(root.resolve()) for root in roots], manifest.inodes, tls, limit)

    def serve(self, member: Member, epoch: int) -> None:
        self.send_to(member.host.name, epoch, link_token(member.token, epoch), ways(member))


def is_tree(entries: Sequence[Entry], mode: int | None) -> bool:
    """Returns whether one folder can hold these entries: no path occurs twice, and each lies in a folder of the list.
    If `mode` is None, the entries must be one file. An impossible list must not reach a receiver, which would be blamed
    for it."""
    if mode is None:
        return [(path, kind) for path, kind, *_ in entries] == [("", "f")]
    kinds = {path: kind for path, kind, *_ in entries}
    above = {path.rpartition("/")[0] for path in kinds} - {""}
    return len(kinds) == len(entries) and "" not in kinds and all(kinds.get(path) == "d" for path in above)


class NodeSource:
    """Has a node send its files. Call read() for its manifest, then follow() to receive its messages. digests: file
    number -> sha256. changed, grown: numbers of the files that changed, or got longer, while the node read them. sent:
    bytes that the node has sent. on_news, on_link: functions that receive its messages."""

    def __init__(
        self,
        session: Session,
        paths: list[str],
        tls: dict[str, str],
        limit: int | None,
        patience: float,
        cancel: Cancel,
        copy_unsafe_links: bool = False,
    ) -> None:
        self.name = f"host {session.host.name}"
        self.digests: dict[int, str] = {}
        self.changed: set[int] = set()
        self.on_news: Callable[[dict[int, str], set[int]], None] = lambda digests, changed: None
        self.on_link: Callable[[Link], None] = lambda message: None
        self.grown: set[int] = set()
        self.sent = 0
        self._host, self._paths, self._count = session.host, paths, 0
        self._requested: set[int] = set()
        spec: FirstSpec = {
            "paths": paths,
            "copy_unsafe_links": copy_unsafe_links,
            "tls": tls,
            "limit": limit,
            "every": EVERY_SECONDS,
            "patience": patience,
        }
        self._program = Program(session, "delivery.chain.first", spec)
        self._outbox = Outbox(self._program)
        self._watchdog = Watchdog(clock=self._program.clock)
        self._frames = self._program.frames(silence=SILENCE_SECONDS, cancel=cancel, watchdog=self._watchdog)
        self._ended = False

    def _next_message(self) -> FirstMessage:
        for frame in self._frames:
            if frame.kind == MESSAGE:
                message = frame.decode(FirstMessage)
                if message["event"] == "failed":
                    raise UsageError(Reason.of_node(message["message"]), host=self._host.name, hint=message["hint"])
                return message
        raise HostFailed("it ended early", host=self._host.name, kind="protocol")

    def read(self) -> Manifest:
        """Returns the manifest of the node's paths. Raises FleetError."""
        trees = [self._tree(path) for path in self._paths]
        self._count = sum(len(tree.by_path) for tree in trees)
        self._watchdog.limit = math.inf  # from here on the judge finds the hosts that make no progress
        return Manifest.of(trees)

    def _tree(self, path: str) -> Tree:
        tree = received_tree(self._next_message, self._host.name, "pack them: tar")
        if not is_tree(tree.entries, tree.mode):
            raise ProtocolError("its list of files makes no sense", self._host.name)
        return replace(tree, root=Path(path))

    def follow(self, failed: Callable[[FleetError], None]) -> None:
        """Starts a thread that receives the node's messages until the end. failed: called with the error if the node
        fails."""

        def run() -> None:
            try:
                while not self._ended:
                    self._take(self._next_message())
            except FleetError as error:
                if not self._ended and not isinstance(error, Interrupted):
                    why = f"{self.name}, which has the files, is gone: {error.message}"
                    failed(HostFailed(why, hint=error.hint, kind="lost"))

        unattended(self.name, run)

    def _take(self, message: FirstMessage) -> None:
        if message["event"] == "link":
            self.on_link(message)
        elif message["event"] == "sent":
            self.sent = message["bytes"]
            self.grown.update(index for index in message["grown"] if index < self._count)
        elif message["event"] == "news":
            digests, changed = dict(message["digests"]), set(message["changed"])
            if any(index >= self._count for index in digests.keys() | changed):
                raise ProtocolError("a file that is not in its list", self._host.name)
            self.digests |= digests
            self.changed |= changed
            self.on_news(digests, changed)

    def ask(self, files: Iterable[int]) -> set[int]:
        """Requests the digests of these files. Returns the files whose digests are not known yet."""
        missing = set(files) - self.digests.keys() - self.changed
        for part in in_parts(sorted(missing - self._requested), FILES_AT_ONCE):
            self._outbox.put({"op": "ask", "files": part})
        self._requested |= missing
        return missing

    def serve(self, member: Member, epoch: int) -> None:
        token = link_token(member.token, epoch)
        where = {"name": member.host.name, "addresses": member.addresses}
        self._outbox.put({"op": "next", "epoch": epoch, "token": token, **where})

    def end(self) -> None:
        self._ended = True
        self._outbox.put({"op": "end"})
        self._outbox.close()


Source = HeadSource | NodeSource


def ways(member: Member) -> list[Way]:
    """Returns the ways by which this machine can dial a member, the best one first."""
    direct = [way(address, port) for address, port in member.addresses]
    if member.session is None:
        return direct
    tunnel: Way = ("over its SSH connection", partial(_through, member.session, member))
    return [tunnel, *direct] if member.host.proxy_jump else [*direct, tunnel]


def _through(session: Session, member: Member) -> socket.socket:
    """Returns a socket that a program on the node connects to the node's listener."""
    try:
        channel = session.start(bootstrap(session.host))
        channel.send(packed("ports.tunnel", {"addresses": member.own_addresses}))
        near, far = socket.socketpair()
        with on_failure(near.close), on_failure(far.close):
            unattended("tunnel", partial(_pull, channel, far))
            unattended("tunnel", partial(_push, far, channel))
    except FleetError as error:
        raise OSError(error.message) from error
    return near


def _pull(channel: Channel, far: socket.socket) -> None:
    with far, contextlib.suppress(FleetError, OSError), contextlib.closing(channel):
        for data in after_preamble(partial(channel.recv, POLL_SECONDS)):
            far.sendall(data)
        far.shutdown(socket.SHUT_RDWR)


def _push(far: socket.socket, channel: Channel) -> None:
    with contextlib.suppress(FleetError, OSError):
        while data := far.recv(1 << 17):
            channel.send(data)
        channel.send_eof()
