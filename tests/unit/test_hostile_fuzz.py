"""Whatever a relay or a mirror says: an error of that host or none, never a fault of ours, and the other host finishes.

FLEET_FUZZ=5000 looks harder.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import FleetError, ProtocolError
from fleet.protocol.messages import chain, code
from tests.chain_head import AT, DONE, NEED, ChainHead
from tests.hostile import MIRRORED, error_of, hostile
from tests.liar import JUNK, steady
from tests.schemas import as_json, fitting, nearly

pytestmark = pytest.mark.slow
Messages = list[dict[str, Any]]


@st.composite
def lies(draw: Callable[[Any], Any], known: Messages, kind: Any) -> Messages:
    """What an honest node says, in another order, more than once, and with what it might say (a `kind`) or never would
    between it."""
    messages: Messages = copy.deepcopy(known)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(messages) - 1))
        change = draw(st.sampled_from(["might", "never", "junk", "again", "swap", "drop"]))
        if change in ("might", "never"):
            said = as_json(draw(fitting(kind) if change == "might" else nearly(kind)))
            messages.insert(at, said if isinstance(said, dict) else {"event": said})
        elif change == "junk":
            messages[at][draw(st.sampled_from([*messages[at], "event", "more"]))] = draw(JUNK)
        elif change == "again":
            messages.insert(draw(st.integers(0, len(messages))), copy.deepcopy(messages[at]))
        elif change == "swap":
            other = draw(st.integers(0, len(messages) - 1))
            messages[at], messages[other] = messages[other], messages[at]
        elif len(messages) > 1:
            del messages[at]
    return messages


RELAY: Messages = [
    {"event": "hello"},
    {"event": "lacks", "unsure": {"1": "00"}},
    NEED,
    AT,
    {"event": "corrupt", "file": 1, "epoch": 1},
    {"event": "corrupt", "file": 0, "epoch": 2},
    {"event": "link", "epoch": 2, "kind": "protocol", "why": "x"},
    {"event": "link", "epoch": 2, "kind": "unreachable", "why": "x"},
    {"event": "link", "epoch": 2, "kind": "lost", "why": "x"},
    {**AT, "received": 8, "position": 8},
    {"event": "shared", "with": "a"},
    {"event": "failed", "message": "no", "hint": None},
    {"event": "done", "files": 2, "bytes": 8, "problems": [], "left": [], "aside": []},
]


@steady
@given(lies(RELAY, chain.MemberMessage), st.booleans())
def test_a_relay_that_says_anything(messages: Messages, first: bool) -> None:
    names = ["e", "a"] if first else ["a", "e"]
    head = ChainHead(*names)
    good = iter([{"event": "hello"}, NEED, AT, {**AT, "received": 8, "position": 8}])
    out: FleetError | None = None
    for message in messages:
        if out is None:
            try:
                head.receive("e", message)
            except ProtocolError as error:
                out = error
                head.leave("e", out)
        with contextlib.suppress(StopIteration):
            head.receive("a", next(good))
        head.tick()
    head.receive("a", *good)
    if out is None:
        head.leave("e")
    other = head.members["a"]
    refused = other.state == "out" and "because of host e" in str(other.error)  # it said: no room
    if not refused:
        head.receive("a", DONE)
        assert other.state == "done" and other.error is None and head.over
    dialled = {
        address
        for name in names
        for message in head.sent(name, "next")
        for address, port in message["addresses"]
        if 0 < port < 1 << 16
    }
    assert dialled <= {"a", "e"}


MIRROR_SAYS = code.Hello | code.Shared | code.Waiting | code.Lacks | code.Need | code.Consent | code.Done | code.Refused
MIRROR: Messages = [*MIRRORED]
MIRROR[1:1] = [{"event": "waiting", "run": "r"}, {"event": "lacks", "files": [["f", 1]]}]


@steady
@given(lies(MIRROR, MIRROR_SAYS))
def test_a_mirror_that_says_anything(messages: Messages) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "f").write_text("x")
        report = hostile(*messages).sync(folder, "/d")
    error = error_of(report)
    assert report.as_json() and (error is None or error.kind != "internal"), error
