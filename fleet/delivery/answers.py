"""What the head answers while a node compares: what it alone knows of the source, and its user's consent."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import TypeVar

from fleet.delivery.conversation import Conversation
from fleet.delivery.parcels import Parcels
from fleet.delivery.tree import MAX_ENTRIES, Tree, with_payload
from fleet.errors import ProtocolError
from fleet.events import Emit, Notice
from fleet.node.delivery.ownership import is_meant
from fleet.protocol.messages.code import Doubts, Gone, Kind, Lacks, Lost, LostFile, Most, Need, Other, Own, OwnFile
from fleet.requests.sync import Sync
from fleet.rules.units import few
from fleet.transport.program import Program

T = TypeVar("T")


class Answers:
    """To the nodes of one sync. force: what is the nodes' own and is replaced, as of the request."""

    def __init__(self, tree: Tree, parcels: Parcels, emit: Emit, request: Sync) -> None:
        self._tree, self._parcels, self._emit = tree, parcels, emit
        self.force, self._request = request.force, request
        self._shown: set[str] = set()

    def until(self, talk: Conversation, program: Program, name: str) -> Other | Most | Own | Lacks | Need:
        """Answer what a node asks, up to what it lacks, or what must be consented to."""
        tree = self._tree
        doubts: list[str] = []
        gone: list[tuple[str, Kind]] = []
        lost: list[LostFile] = []
        own: list[OwnFile] = []

        while True:
            message = talk.answer(Doubts | Gone | Lost | Own | Other | Most | Lacks | Need)
            if message["event"] == "doubts":
                take_more(doubts, message["paths"], len(tree.by_path), name)
                if not message["more"]:
                    if not tree.by_path.keys() >= set(doubts):
                        raise ProtocolError("it asks for files that are not in the source", name)
                    program.send_bytes(packed("digests", self._parcels.digests(doubts)))
            elif message["event"] == "gone":
                take_more(gone, message["entries"], MAX_ENTRIES, name)
                if not message["more"]:
                    excluded = tree.excluded(gone) if gone else set[str]()
                    if self._request.delete_excluded and excluded:
                        text = f"deletes what is left out here, as far as it is as delivered: {few(sorted(excluded))}"
                        if text not in self._shown:  # once for all hosts
                            self._emit(Notice("warning", text))
                        self._shown.add(text)
                        excluded = set()
                    program.send_bytes(packed("excluded", sorted(excluded)))
            elif message["event"] == "lost":
                take_more(lost, message["files"], MAX_ENTRIES, name)
                if not message["more"]:
                    sizes = {size for _, size, _ in lost}
                    near = [path for path, entry in tree.by_path.items() if entry[3] in sizes]
                    have = set(self._parcels.digests(near).values())
                    there = [path for path, _, digest in lost if digest in have]
                    program.send_bytes(packed("elsewhere", there))
            elif message["event"] == "own":
                take_more(own, message["files"], len(tree.entries), name)
                if not message["more"]:
                    answer = resolution(own, self.force, self._request.keep)
                    if answer is None:
                        return {**message, "files": own}
                    program.send_bytes(answer)
            else:
                return message


def packed(op: str, answer: object) -> bytes:
    """Returns the answer to a list of a node's: a control line, and JSON."""
    return with_payload(op, zlib.compress(json.dumps(answer).encode(), 1))


def resolution(own: Sequence[OwnFile], force: bool | Sequence[str], keep: bool) -> bytes | None:
    """Returns the answer to what is a node's own and in the way; None where its user must be asked."""
    paths = [path for path, *_ in own]
    meant = [path for path in paths if is_meant(path, force)]
    rest = sorted(set(paths).difference(meant))
    return None if rest and not keep else packed("resolve", {"replace": meant, "keep": rest})


def take_more(items: list[T], more: Sequence[T], most: int, host: str) -> None:
    """Takes more of a list of the node's, which has an end."""
    items += more
    if len(items) > most or not more:
        raise ProtocolError("it lists more than there can be", host)
