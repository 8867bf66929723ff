"""Reads the list of files that one host would send, and checks that it fits the request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, TypedDict

from fleet.delivery.chain.source import is_tree
from fleet.delivery.tree import Tree, received_tree
from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.model import Host
from fleet.ops.get.names import without_repositories
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.give import GiveSpec, Giving
from fleet.protocol.state import STATE_FOLDERS
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Watchdog
from fleet.transport.program import Program

SILENCE_SECONDS = 60.0  # the head reads no frames while it hashes a file that it already has
Output = TypedDict("Output", {"event": Literal["output"], "data": bytes})
End = TypedDict("End", {"event": Literal["end"]})
Message = Giving | Output | End


class Sender:
    """Runs the program `delivery.give` on a host and reads its list of files: `tree` and `left_out`, as listed()
    returns them. everything: whether to keep git's and hg's repositories in the list. messages(): reads the messages
    after the list."""

    def __init__(self, host: Host, spec: GiveSpec, runtime: Runtime, everything: bool) -> None:
        with contextlib.ExitStack() as opened:
            session = runtime.transport.connect(host, runtime.cancel)
            opened.callback(session.close)
            self.program = opened.enter_context(Program(session, "delivery.give", spec))
            self.messages = partial(messages_of, self.program, runtime.cancel)
            self.tree, self.left_out = listed(self.messages(), spec, host.name, everything)
            is_there = bool(self.tree.entries) or spec["run"] is None and self.tree.mode is not None
            self.has_files = is_there and "." not in self.left_out
            self.close = opened.pop_all().close


class Senders:
    """Holds a Sender for each host. stay: whether a Sender stays open after its list of files, so that all hosts are
    connected at once. Without `stay`, it is closed after its list, and open() starts a new one."""

    def __init__(self, runtime: Runtime, stay: bool, everything: bool) -> None:
        self.runtime, self.stay, self.everything = runtime, stay, everything
        self._open = dict[str, Sender]()

    def list_files(self, host: Host, spec: GiveSpec) -> Sender:
        """Returns the host's Sender with its list of files. The Sender is already closed unless `stay`."""
        sender = self._open[host.name] = self.open(host, spec)
        if not self.stay:
            self._open.pop(host.name).close()
        return sender

    def open(self, host: Host, spec: GiveSpec) -> Sender:
        """Returns an open Sender of the host. Starts a new one if none is open. The caller closes it."""
        return self._open.pop(host.name, None) or Sender(host, spec, self.runtime, self.everything)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def messages_of(program: Program, cancel: Cancel) -> Iterator[Message]:
    """Yields the node's messages and output, and the message "end" after the last one. Raises HostFailed if the node
    reports that it failed."""
    for frame in program.frames(silence=SILENCE_SECONDS, cancel=cancel, watchdog=Watchdog(clock=program.clock)):
        if frame.kind == OUTPUT:
            yield {"event": "output", "data": frame.payload}
        elif frame.kind == MESSAGE:
            message = frame.decode(Giving)
            if message["event"] == "failed":
                raise HostFailed(Reason.of_node(message["message"]), host=program.host.name, hint=message["hint"])
            yield message
    yield {"event": "end"}


def listed(messages: Iterator[Message], spec: GiveSpec, host: str, everything: bool) -> tuple[Tree, tuple[str, ...]]:
    """Returns (the files that a host would send, paths of the repositories that were left out). A tree without entries
    and without a mode means that the host has no such path. Raises ProtocolError if the list does not fit the
    request."""
    tree = received_tree(lambda: next(messages), host, "name a folder further down")
    path = spec["path"].partition("/")[2] if spec["path"][0] == "~" else spec["path"]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    mismatch = bool(parts) and parts != list(tree.root.parts)[-len(parts) :]
    # on the head, such a folder would look like the state of a sync
    mismatch |= any(entry[1] == "d" and entry[0].endswith(STATE_FOLDERS) for entry in tree.entries)
    if tree.entries or tree.mode is not None:
        mismatch |= not is_tree(tree.entries, tree.mode) or spec["run"] is not None and tree.mode is None
    if mismatch:
        raise ProtocolError(f"its list of files is not one of {spec['path']}", host)
    entries, left_out = (tree.entries, []) if everything else without_repositories(tree.entries)
    return replace(tree, entries=entries), tuple(left_out)
