"""Refuses hosts that claim a key which is not theirs. A public key is known to all, so a node may send the head's, or
another host's, as its own. A node proves such a key by the sha256 of its private half. Hosts that share a home, or are
clones of one image, have the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fleet.errors import ConnectError, Reason
from fleet.inventory.nodeset import fold
from fleet.ops.setup_ssh import files
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.node import NodeState


def refused(states: Mapping[str, NodeState], head: Head) -> dict[str, ConnectError]:
    """Returns errors by host: of those that name a key of the head's or of another host's, and do not show that they
    have it. Where none of several is known to have had it before, and they show different ones, it is all."""
    mine = {key.id: hashlib.sha256(files.read(path) or b"").hexdigest() for path, key in head.keys.items()}
    claims: dict[str, dict[str, str | None]] = {}
    for name, state in states.items():
        if state.key is not None:
            claims.setdefault(state.key.id, {})[name] = state.shows
    errors: dict[str, ConnectError] = {}
    for key, shown in claims.items():
        before = _before(key, shown, head)
        right = {mine[key]} if key in mine else {*(before or shown).values()} - {None}
        for name in [name for name, digest in shown.items() if right and right != {digest}]:
            others = "this machine" if key in mine else fold({*(before or shown)} - {name})
            errors[name] = ConnectError(
                Reason("the key that it calls its own is that of {others}, and it does not show it", others=others),
                kind="key",
                hint=f"move ~/.ssh/{states[name].key_name} away there, and run this again: it gets a key of its own",
            )
    return errors


def _before(key: str, shown: Mapping[str, str | None], head: Head) -> dict[str, str | None]:
    """Returns what the inventory's hosts show, or else have shown, by name, that had the key when they were set up."""
    traces = {entry.name: head.record.hosts.get(entry.name) for entry in head.plan.node_entries}
    had = {name: trace.shows for name, trace in traces.items() if trace is not None and key in trace.uses}
    now = {name: shown[name] for name in had if name in shown}
    return now or {name: digest for name, digest in had.items() if digest}
