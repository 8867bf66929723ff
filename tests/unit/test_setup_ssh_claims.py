"""Which host's word is taken for a key that several call their own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.ops.setup_ssh.claims import refused
from fleet.ops.setup_ssh.edits import PublicKey
from fleet.ops.setup_ssh.node import NodeState

KEY, OTHER = PublicKey(b"ssh-ed25519", b"A" * 68), PublicKey(b"ssh-ed25519", b"B" * 68)


def judged(shown: dict[str, str | None], recorded: dict[str, str | None]) -> set[str]:
    """Who is refused, of hosts that name KEY. recorded: those that had it when they were set up last, and what they
    showed then."""
    traces: dict[str, Any] = {name: SimpleNamespace(uses=[KEY.id], shows=was) for name, was in recorded.items()}
    plan = SimpleNamespace(node_entries=[SimpleNamespace(name=name) for name in {**recorded, **shown}])
    head: Any = SimpleNamespace(keys={Path(__file__): OTHER}, record=SimpleNamespace(hosts=traces), plan=plan)
    states = {name: NodeState(key=KEY, key_name="id", shows=digest) for name, digest in shown.items()}
    return {*refused({**states, "x": NodeState(key=None)}, head)}


@pytest.mark.parametrize(
    "shown, recorded, wrong",
    [
        ({"a": "1"}, {}, ""),
        ({"a": "1"}, {"a": "0"}, ""),
        ({"a": "1", "b": "1"}, {}, ""),
        ({"a": "1", "b": "2"}, {}, "ab"),
        ({"a": "1", "b": None}, {}, "b"),
        ({"a": None, "b": None}, {}, ""),
        ({"a": "1", "b": "2"}, {"a": "1"}, "b"),
        ({"a": "1", "b": None}, {"a": "1"}, "b"),
        ({"a": "2", "b": "2"}, {"a": "1"}, ""),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "1"}, "ab"),
        ({"b": "2"}, {"a": "1"}, "b"),
        ({"b": "1"}, {"a": "1"}, ""),
        ({"b": "2"}, {"a": None}, ""),
        ({"a": None, "b": "2"}, {"a": None}, ""),
        ({"b": "2"}, {"a": "1", "b": "1"}, ""),
    ],
)
def test_who_is_refused(shown: dict[str, str | None], recorded: dict[str, str | None], wrong: str) -> None:
    """One without a digest does not show that it has the key; of what nobody has shown nothing is known."""
    assert judged(shown, recorded) == {*wrong}
