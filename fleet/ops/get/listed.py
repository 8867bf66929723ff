"""Reads what one host would send: its list of files, and a check that it is one of what was requested."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, TypedDict

from fleet.delivery.chain.source import is_tree
from fleet.delivery.tree import Tree, told
from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.model import Host
from fleet.ops.get.names import without_repositories
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.give import GiveSpec, Giving
from fleet.protocol.state import STATE_FOLDERS
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Watchdog
from fleet.transport.program import Program

SILENCE_SECONDS = 60.0  # a digest of what is here already takes its time
Output = TypedDict("Output", {"event": Literal["output"], "data": bytes})
End = TypedDict("End", {"event": Literal["end"]})
Message = Giving | Output | End


class Giver:
    """A host's program that gives, from its list of files on: the tree, and what is left_out, as listed() has it."""

    def __init__(self, host: Host, spec: GiveSpec, runtime: Runtime, everything: bool) -> None:
        with contextlib.ExitStack() as opened:
            session = runtime.transport.connect(host, runtime.cancel)
            opened.callback(session.close)
            self.program = opened.enter_context(Program(session, "delivery.give", spec))
            self.messages = partial(messages_of, self.program, runtime.cancel)
            self.tree, self.left_out = listed(self.messages(), spec, host.name, everything)
            self.close = opened.pop_all().close


class Givers:
    """The programs of the hosts. Those of no more hosts than may be connected at once go on, from their lists on; else
    each begins again when it is wanted."""

    def __init__(self, runtime: Runtime, stay: bool, everything: bool) -> None:
        self.runtime, self.stay, self.everything = runtime, stay, everything
        self._open = dict[str, Giver]()

    def look(self, host: Host, spec: GiveSpec) -> Giver:
        giver = self._open[host.name] = self.take(host, spec)
        if not self.stay:
            self._open.pop(host.name).close()
        return giver

    def take(self, host: Host, spec: GiveSpec) -> Giver:
        """Returns one that is open; the caller closes it."""
        return self._open.pop(host.name, None) or Giver(host, spec, self.runtime, self.everything)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def messages_of(program: Program, cancel: Cancel) -> Iterator[Message]:
    """All of them, and "end" at last. HostFailed where one is that it failed."""
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
    """(what a host would give, repositories that are left out). With no entries and no mode it has nothing there."""
    tree = told(lambda: next(messages), host, "name a folder further down")
    path = spec["path"].partition("/")[2] if spec["path"][0] == "~" else spec["path"]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    odd = bool(parts) and parts != list(tree.root.parts)[-len(parts) :]
    # the state of a sync that never was would lie here
    odd |= any(entry[1] == "d" and entry[0].endswith(STATE_FOLDERS) for entry in tree.entries)
    if tree.entries or tree.mode is not None:
        odd |= not is_tree(tree.entries, tree.mode) or spec["run"] is not None and tree.mode is None
    if odd:
        raise ProtocolError(f"its list of files is not one of {spec['path']}", host)
    entries, left_out = (tree.entries, []) if everything else without_repositories(tree.entries)
    return replace(tree, entries=entries), tuple(left_out)
