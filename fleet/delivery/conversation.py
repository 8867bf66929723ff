"""Holds the head's end of the conversations with node/delivery/code_sync.py. It connects hosts while the source is
read. Then it answers the nodes' requests by the manifest of the source and by the user's consent."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fleet.background import background
from fleet.codec import T
from fleet.delivery.parcels import Parcels
from fleet.delivery.tree import MAX_ENTRIES, Tree, with_payload
from fleet.errors import ConnectError, HostFailed, ProtocolError, Reason
from fleet.events import Emit, Notice
from fleet.model import Host
from fleet.node.base.errors import on_failure
from fleet.node.delivery.ownership import is_meant
from fleet.protocol.frames import EXIT, MESSAGE
from fleet.protocol.messages.code import (
    Consent,
    Doubts,
    Gone,
    Lacks,
    Lost,
    Need,
    Own,
    OwnFile,
    Refused,
    Waiting,
)
from fleet.requests.sync import Sync
from fleet.rules.units import few
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session, Watchdog
from fleet.transport.frames import Frame, decoded
from fleet.transport.program import Program

if TYPE_CHECKING:
    from typing_extensions import TypeForm

SILENCE_SECONDS = 30.0  # a host that sends no byte for so long is lost
JOIN_SECONDS = 5.0  # how long to wait for the end of the thread that sends
MOST_WAITS = 3  # a sound node waits once, while a run begins


class Conversation:
    """Reads the messages of node/delivery/code_sync.py, one at a time. waiting: called once, with the id of a run that
    the node waits for."""

    def __init__(self, program: Program, runtime: Runtime, waiting: Callable[[str], None]) -> None:
        self._program, self._waiting = program, waiting
        self._waited = 0
        self.watchdog = Watchdog(clock=program.clock)
        self._frames: Iterator[Frame] = program.frames(
            silence=SILENCE_SECONDS, cancel=runtime.cancel, watchdog=self.watchdog
        )

    def answer(self, kind: TypeForm[T]) -> T:
        """Returns the next message, which must be of this kind. Raises HostFailed if that message is a refusal."""
        name = self._program.host.name
        for frame in self._frames:
            if frame.kind == EXIT:
                continue
            message = frame.json() if frame.kind == MESSAGE else {}
            if message.get("event") == "waiting" and self._waited < MOST_WAITS:
                if not self._waited:  # only the first notice is shown: a node may repeat it without end
                    self._waiting(decoded(Waiting, message, name)["run"])
                self._waited += 1
            elif message.get("event") == "failed":
                refused = decoded(Refused, message, name)
                raise HostFailed(
                    Reason.of_node(refused["message"]),
                    hint=refused["hint"],
                    host=name,
                    kind="busy" if refused.get("busy") else "sync",
                )
            else:
                return decoded(kind, message, name)
        raise ConnectError("the node ended the sync early", host=name, kind="protocol")


@contextlib.contextmanager
def delivering(program: Program, deliver: Callable[[Cancel], None], cancel: Cancel) -> Iterator[None]:
    """Sends a host what it lacks, in a thread, while the caller receives the host's messages. A host that fails or
    freezes thus does not block the caller."""
    stop = Cancel()
    sent = background(f"delivery {program.host.name}", partial(deliver, stop))
    sent.add_done_callback(lambda done: program.close() if done.exception() else None)
    try:
        with cancel.calling(stop.set):
            yield
            wait([sent], JOIN_SECONDS)
        if sent.done():
            sent.result()
    except Exception as error:
        # the error may be a consequence: a failed delivery closes the program
        cause = sent.exception() if sent.done() else None
        if cause is None or getattr(error, "kind", None) == "sync":  # the error is the node's own message
            raise
        raise cause from None
    finally:
        stop.set()
        if not sent.done():
            program.close()  # this ends a write that waits for the node to read
            wait([sent], JOIN_SECONDS)


@contextlib.contextmanager
def connected_ahead(hosts: Sequence[Host], runtime: Runtime) -> Iterator[Callable[[Host], tuple[Session, Program]]]:
    """Connects up to --fanout hosts and loads their programs, while the source is still being read. Yields a function
    that returns (session, program) of a host, and raises as connect() does. At the end it closes the sessions that no
    caller took."""
    cancel = Cancel()

    def begin(host: Host) -> tuple[Session, Program]:
        session = runtime.transport.connect(host, cancel)
        with on_failure(session.close):
            return session, Program(session, "delivery.code_sync", None)

    begun = {h.name: background("ahead", partial(begin, h)) for h in hosts[: runtime.fanout]}

    def take(host: Host) -> tuple[Session, Program]:
        ahead = begun.pop(host.name, None)
        return ahead.result() if ahead else begin(host)

    try:
        with runtime.cancel.calling(cancel.set):
            yield take
    finally:
        cancel.set()
        for ahead in begun.values():
            ahead.add_done_callback(_leave)


def _leave(begun: Future[tuple[Session, Program]]) -> None:
    if begun.exception() is None:
        session, program = begun.result()
        program.close()
        session.close()


class Answers:
    """Answers the requests of the nodes in a sync. force: the nodes' own files to replace, as in the request."""

    def __init__(self, tree: Tree, parcels: Parcels, emit: Emit, request: Sync) -> None:
        self._tree, self._parcels, self._emit = tree, parcels, emit
        self.force, self._request = request.force, request
        self._shown: set[str] = set()

    def answer_until_need(self, talk: Conversation, program: Program, name: str) -> Consent | Own | Lacks | Need:
        """Answers a node's requests. Returns its first message that is not a request: what it lacks, or what needs
        consent."""
        lists: dict[str, list[Any]] = {}
        while True:
            message = talk.answer(Doubts | Gone | Lost | Own | Consent | Lacks | Need)
            if message["event"] == "need" or message["event"] == "lacks" or message["event"] == "consent":
                return message
            items = lists.setdefault(message["event"], [])
            is_of_source = message["event"] == "doubts" or message["event"] == "own"
            take_more(items, message["items"], len(self._tree.entries) if is_of_source else MAX_ENTRIES, name)
            if message["more"]:
                continue
            if message["event"] == "own":
                answer = resolution(items, self.force, self._request.keep)
                if answer is None:
                    return {**message, "items": items}
            else:
                answer = packed(self._known(message["event"], items, name))
            program.send_bytes(answer)

    def _known(self, event: Literal["doubts", "gone", "lost"], items: list[Any], name: str) -> object:
        """Returns the answer to a list of paths, which node/delivery/code_sync.py describes."""
        files = self._tree.by_path
        if event == "doubts":
            if not files.keys() >= set(items):
                raise ProtocolError("it asks for files that are not in the source", name)
            return self._parcels.digests(items)
        if event == "lost":
            sizes = {size for _, size, _ in items}
            have = set(self._parcels.digests([path for path, entry in files.items() if entry[3] in sizes]).values())
            return [path for path, _, digest in items if digest in have]
        excluded = sorted(self._tree.excluded(items))
        if not self._request.delete_excluded or not excluded:
            return excluded
        text = f"deletes excluded files that are unchanged since their delivery: {few(excluded)}"
        if text not in self._shown:  # once for all hosts
            self._emit(Notice("warning", text))
        self._shown.add(text)
        return []


def packed(answer: object) -> bytes:
    """Returns an answer as a control line with its payload."""
    return with_payload("answer", zlib.compress(json.dumps(answer).encode(), 1))


def resolution(own: Sequence[OwnFile], force: bool | Sequence[str], keep: bool) -> bytes | None:
    """Returns the answer about a node's own files that are in the way; None if the user must decide. force: patterns of
    the files to replace, or True for all. keep: keep all other files."""
    paths = [path for path, *_ in own]
    meant = [path for path in paths if is_meant(path, force)]
    rest = sorted(set(paths).difference(meant))
    return None if rest and not keep else packed({"replace": meant, "keep": rest})


def take_more(items: list[T], more: Sequence[T], most: int, host: str) -> None:
    """Adds a part to a node's list. Raises ProtocolError if the part is empty, or if the list has more than `most`
    items."""
    items += more
    if len(items) > most or not more:
        raise ProtocolError("it lists more than there can be", host)
