"""Refuses hosts that claim another host's key. Public keys are known to all, so a node may send the key of the head, or
of another host, as its own key. A node proves its key by the sha256 of the private half. Hosts that share a home, or
are clones of one image, have the same key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fleet.errors import ConnectError, Reason
from fleet.inventory.nodeset import fold
from fleet.ops.setup_ssh import files
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.node import NodeState


def refused(states: Mapping[str, NodeState], head: Head) -> dict[str, ConnectError]:
    """Returns host -> error, for the hosts that claim a key without a proof. If several unknown hosts claim one key
    with different proofs, all of them are refused."""
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
    """Returns host name -> proof, for the inventory's hosts that had the key when they were set up: their present
    proof, or else the one of that time."""
    traces = {entry.name: head.record.hosts.get(entry.name) for entry in head.plan.node_entries}
    had = {name: trace.shows for name, trace in traces.items() if trace is not None and key in trace.uses}
    now = {name: shown[name] for name in had if name in shown}
    return now or {name: digest for name, digest in had.items() if digest}
