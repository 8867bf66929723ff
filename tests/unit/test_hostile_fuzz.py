"""Whatever a relay or a mirror says: an error of that host or none, never a fault of ours, and the other host finishes.

FLEET_FUZZ=5000 looks harder.
"""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.delivery.chain import steering
from fleet.delivery.chain.coordinator import Coordinator
from fleet.delivery.chain.member import Member
from fleet.delivery.manifest import Manifest
from fleet.errors import FleetError, ProtocolError
from fleet.model import Host, Inventory
from fleet.ops import sync
from fleet.ops.launch import gang
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.messages.run import RunState
from fleet.runtime import Runtime
from tests.unit.test_hostile_node import HOST, said

steady = settings(
    max_examples=int(os.environ.get("FLEET_FUZZ", "200")),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
PARTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["/d", ":mod", "0", "e", "a", "x" * 5000, 1 << 62, 10**400, [], {}, [[0, 4]], [["f", 1]]]),
)
JUNK = st.one_of(
    PARTS,
    st.lists(PARTS, max_size=3),
    st.lists(st.lists(PARTS, max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), PARTS, max_size=3),
)
Messages = list[dict[str, Any]]


@st.composite
def lies(draw: Callable[[Any], Any], known: Messages) -> Messages:
    """What an honest node says, with fields of it changed or gone, in another order, more than once."""
    messages: Messages = copy.deepcopy(known)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(messages) - 1))
        key = draw(st.sampled_from([*messages[at], "event", "more"]))
        change = draw(st.sampled_from(["junk", "gone", "again", "swap", "drop"]))
        if change == "junk":
            messages[at][key] = draw(JUNK)
        elif change == "gone":
            messages[at].pop(key, None)
        elif change == "again":
            messages.insert(draw(st.integers(0, len(messages))), copy.deepcopy(messages[at]))
        elif change == "swap":
            other = draw(st.integers(0, len(messages) - 1))
            messages[at], messages[other] = messages[other], messages[at]
        elif len(messages) > 1:
            del messages[at]
    return messages


NEED = {
    "event": "need",
    "wants": [[0, 8]],
    "files": [[0, 2]],
    "unsure": {},
    "bytes": 8,
    "address": "198.18.0.9",
    "port": 9,
    "stages": ["/d/s"],
}
AT = {"event": "at", "position": 4, "received": 4, "placed": 1, "sent": 0}
RELAY: Messages = [
    {"event": "hello"},
    {"event": "lacks", "unsure": {"1": "00"}},
    NEED,
    AT,
    {"event": "corrupt", "file": 1, "epoch": 1},
    {"event": "corrupt", "file": 0, "epoch": None},
    {"event": "link", "epoch": 2, "connected": True, "nonsense": True, "why": "x"},
    {"event": "link", "epoch": 2, "connected": False, "nonsense": False, "why": "x"},
    {"event": "served", "epoch": 2},
    {**AT, "received": 8, "position": 8},
    {"event": "shared", "with": "a"},
    {"event": "failed", "message": "no", "hint": None},
    {"event": "done", "files": 2, "bytes": 8, "problems": []},
]


class Outbox:
    """Takes what a member is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def put(self, message: Any) -> None:
        self.told.append(message)


@steady
@given(lies(RELAY), st.booleans())
def test_a_relay_that_says_anything(messages: Messages, first: bool) -> None:
    names = ["e", "a"] if first else ["a", "e"]
    members = {name: Member(Host(name, name), ["/d"], "secret") for name in names}
    manifest = Manifest(((0, "x", "f", 0o644, 4, 0, ""), (0, "y", "f", 0o644, 4, 0, "")))
    head = Coordinator(list(members.values()), manifest, lambda event: None, lambda member: member.addresses)
    boxes = {name: Outbox() for name in ["", *names]}
    head.source_opened(boxes[""])  # type: ignore[arg-type]
    for name in names:
        head.opened(members[name], boxes[name])  # type: ignore[arg-type]
    good = iter([{"event": "hello"}, NEED, AT, {**AT, "received": 8, "position": 8}])
    steering.DOUBT_SECONDS = 0.0
    out: FleetError | None = None
    for message in messages:
        if out is None:
            try:
                head.handle("e", message)
            except ProtocolError as error:
                out = error
                head.left("e", out)
        with contextlib.suppress(StopIteration):
            head.handle("a", next(good))
        head.tick()
    for message in good:
        head.handle("a", message)
    if out is None:
        head.left("e", None)
    refused = members["a"].state == "out" and "because of host e" in str(members["a"].error)  # it said: no room
    if not refused:
        head.handle("", {"event": "digests", "files": [[0, "00"], [1, "00"]]})
        head.handle("a", {"event": "done", "files": 2, "bytes": 8, "problems": []})
        assert members["a"].state == "done" and members["a"].error is None and head.over.is_set()
    dialled = {
        address
        for box in boxes.values()
        for told in box.told
        if isinstance(told, dict) and told["op"] == "next"
        for address, port, *_ in told["addresses"]
        if 0 < port < 1 << 16
    }
    assert dialled <= {"a", "e"}


MIRROR: Messages = [
    {"event": "hello", "dest": "/d", "known": None, "rsync": None},
    {"event": "waiting", "run": "r"},
    {"event": "lacks", "files": [["f", 1]]},
    {"event": "need", "files": [], "stage": "/d/s", "basis": "/d"},
    {"event": "done", "sent": 0, "bytes": 0, "deleted": 0, "kept": [], "entries": 0, "changed": 0},
]


@steady
@given(lies(MIRROR))
def test_a_mirror_that_says_anything(messages: Messages) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "f").write_text("x")
        inventory = Inventory((HOST,))
        plan = sync.plan(inventory, Path(folder), "/d")
        report = sync.run(plan, Runtime(said(*messages)))
    error = report.results[0].error
    assert report.as_json() and (error is None or error.kind != "internal"), error


RUN: Messages = [
    {"event": "rank", "rank": 0, "local_rank": 0, "status": 1, "signal": None, "time": 1.0, "attempt": 0},
    {
        "event": "status",
        "state": "exited",
        "reason": "x",
        "cause": None,
        "engine_status": 0,
        "signal": None,
        "left": [],
        "began": 1.0,
        "time": 2.0,
        "disk_full": True,
    },
    {"event": "failed", "message": "no such run", "hint": None},
]


@steady
@given(lies(RUN))
def test_a_run_of_which_anything_is_said(messages: Messages) -> None:
    state = gang.NodeState("n1", 0)
    for message in messages:
        with contextlib.suppress(Misfit):
            state.status = decode(RunState, message)
        assert isinstance(state.engine_code, int) and isinstance(state.began, float) and state.state
