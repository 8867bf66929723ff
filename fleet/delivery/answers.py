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
from fleet.rules.units import few
from fleet.transport.program import Program

T = TypeVar("T")


class Answers:
    """To the nodes of one sync. force: True, or patterns of what is the nodes' own and is replaced; keep: what is
    theirs stays. delete_excluded: what is left out here is gone."""

    def __init__(
        self, tree: Tree, parcels: Parcels, emit: Emit, force: bool | Sequence[str], keep: bool, delete_excluded: bool
    ) -> None:
        self._tree, self._parcels, self._emit = tree, parcels, emit
        self.force, self._keep, self._delete_excluded = force, keep, delete_excluded
        self._shown: set[str] = set()

    def until(self, talk: Conversation, program: Program, name: str) -> Other | Most | Own | Lacks | Need:
        """Answer what a node asks, up to what it lacks, or what must be consented to."""
        tree = self._tree
        doubts: list[str] = []
        gone: list[tuple[str, Kind]] = []
        lost: list[LostFile] = []
        own: list[OwnFile] = []

        def send(op: str, answer: object) -> None:
            program.send_bytes(with_payload(op, zlib.compress(json.dumps(answer).encode(), 1)))

        while True:
            message = talk.answer(Doubts | Gone | Lost | Own | Other | Most | Lacks | Need)
            if message["event"] == "doubts":
                _take_more(doubts, message["paths"], len(tree.by_path), name)
                if not message["more"]:
                    if not tree.by_path.keys() >= set(doubts):
                        raise ProtocolError("it asks for files that are not in the source", name)
                    send("digests", self._parcels.digests(doubts))
            elif message["event"] == "gone":
                _take_more(gone, message["entries"], MAX_ENTRIES, name)
                if not message["more"]:
                    excluded = tree.excluded(gone) if gone else set[str]()
                    if self._delete_excluded and excluded:
                        text = f"deletes what is left out here, as far as it is as delivered: {few(sorted(excluded))}"
                        if text not in self._shown:  # once for all hosts
                            self._emit(Notice("warning", text))
                        self._shown.add(text)
                        excluded = set()
                    send("excluded", sorted(excluded))
            elif message["event"] == "lost":
                _take_more(lost, message["files"], MAX_ENTRIES, name)
                if not message["more"]:
                    sizes = {size for _, size, _ in lost}
                    near = [path for path, entry in tree.by_path.items() if entry[3] in sizes]
                    have = set(self._parcels.digests(near).values())
                    send("elsewhere", [path for path, _, digest in lost if digest in have])
            elif message["event"] == "own":
                _take_more(own, message["files"], len(tree.entries), name)
                if not message["more"]:
                    paths = [path for path, *_ in own]
                    meant = [path for path in paths if is_meant(path, self.force)]
                    rest = sorted(set(paths).difference(meant))
                    if rest and not self._keep:
                        return {**message, "files": own}
                    send("resolve", {"replace": meant, "keep": rest})
            else:
                return message


def _take_more(items: list[T], more: Sequence[T], most: int, host: str) -> None:
    """Take more of a list of the node's, which has an end."""
    items += more
    if len(items) > most or not more:
        raise ProtocolError("it lists more than there can be", host)
