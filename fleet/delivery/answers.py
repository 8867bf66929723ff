"""Makes the head's answers while a node compares: what only the head knows of the source, and its user's consent."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from fleet.delivery.conversation import Conversation
from fleet.delivery.parcels import Parcels
from fleet.delivery.tree import MAX_ENTRIES, Tree, with_payload
from fleet.errors import ProtocolError
from fleet.events import Emit, Notice
from fleet.node.delivery.ownership import is_meant
from fleet.protocol.messages.code import Doubts, Gone, Lacks, Lost, Most, Need, Other, Own, OwnFile
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
        """Answers what a node asks, up to what it lacks, or what must be consented to."""
        lists: dict[str, list[Any]] = {}
        while True:
            message = talk.answer(Doubts | Gone | Lost | Own | Other | Most | Lacks | Need)
            if message["event"] == "need" or message["event"] == "lacks":
                return message
            if message["event"] == "other" or message["event"] == "most":
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
        """Returns what is known here of what a node lists."""
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
        text = f"deletes what is left out here, as far as it is as delivered: {few(excluded)}"
        if text not in self._shown:  # once for all hosts
            self._emit(Notice("warning", text))
        self._shown.add(text)
        return []


def packed(answer: object) -> bytes:
    """Returns the answer to a list of a node's: a control line, and JSON."""
    return with_payload("answer", zlib.compress(json.dumps(answer).encode(), 1))


def resolution(own: Sequence[OwnFile], force: bool | Sequence[str], keep: bool) -> bytes | None:
    """Returns the answer to what is a node's own and in the way; None where its user must decide."""
    paths = [path for path, *_ in own]
    meant = [path for path in paths if is_meant(path, force)]
    rest = sorted(set(paths).difference(meant))
    return None if rest and not keep else packed({"replace": meant, "keep": rest})


def take_more(items: list[T], more: Sequence[T], most: int, host: str) -> None:
    """Takes more of a list of the node's, which has an end."""
    items += more
    if len(items) > most or not more:
        raise ProtocolError("it lists more than there can be", host)
