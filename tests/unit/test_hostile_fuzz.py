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

from fleet.delivery.chain import judge
from fleet.delivery.chain.coordinator import Coordinator
from fleet.delivery.chain.handlers import HANDLERS
from fleet.delivery.chain.member import Member
from fleet.delivery.manifest import Manifest
from fleet.errors import FleetError, ProtocolError
from fleet.model import Host, Inventory
from fleet.ops import sync
from fleet.protocol.messages import chain, code
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from tests.liar import JUNK, steady
from tests.schemas import as_json, fitting, nearly
from tests.unit.test_hostile_node import HOST, said

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


NEED = {
    "event": "need",
    "wants": [[0, 8]],
    "files": [[0, 2]],
    "unsure": {},
    "own": [],
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
    {"event": "corrupt", "file": 0, "epoch": 2},
    {"event": "link", "epoch": 2, "kind": "protocol", "why": "x"},
    {"event": "link", "epoch": 2, "kind": "unreachable", "why": "x"},
    {"event": "link", "epoch": 2, "kind": "lost", "why": "x"},
    {**AT, "received": 8, "position": 8},
    {"event": "shared", "with": "a"},
    {"event": "failed", "message": "no", "hint": None},
    {"event": "done", "files": 2, "bytes": 8, "problems": [], "left": [], "aside": []},
]


class Outbox:
    """Takes what a member is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def put(self, message: Any) -> None:
        self.told.append(message)


class Files:
    """A source that knows all digests at once, and serves nobody."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {0: "00", 1: "00"}
        self.changed: set[int] = set()
        self.sent = 0

    def ask(self, files: Any) -> set[int]:
        return set(files) - self.digests.keys()

    def end(self) -> None: ...


@steady
@given(lies(RELAY, chain.MemberMessage), st.booleans())
def test_a_relay_that_says_anything(messages: Messages, first: bool) -> None:
    names = ["e", "a"] if first else ["a", "e"]
    members = {name: Member(Host(name, name), ["/d"], "secret") for name in names}
    manifest = Manifest(((0, "x", "f", 0o644, 4, 0, ""), (0, "y", "f", 0o644, 4, 0, "")))
    head = Coordinator(
        list(members.values()), manifest, lambda event: None, files(), lambda member, epoch: None, handlers=HANDLERS
    )
    boxes = {name: Outbox() for name in names}
    for name in names:
        head.opened(members[name], boxes[name])  # type: ignore[arg-type]
    good = iter([{"event": "hello"}, NEED, AT, {**AT, "received": 8, "position": 8}])
    judge.DOUBT_SECONDS = 0.0
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
        head.handle("a", {"event": "done", "files": 2, "bytes": 8, "problems": [], "left": [], "aside": []})
        assert members["a"].state == "done" and members["a"].error is None and head.over.is_set()
    dialled = {
        address
        for box in boxes.values()
        for told in box.told
        if isinstance(told, dict) and told["op"] == "next"
        for address, port in told["addresses"]
        if 0 < port < 1 << 16
    }
    assert dialled <= {"a", "e"}


def files() -> Any:
    return Files()


MIRROR_SAYS = code.Hello | code.Shared | code.Waiting | code.Lacks | code.Need | code.Other | code.Done | code.Refused
MIRROR: Messages = [
    {"event": "hello", "dest": "/d", "known": None, "rsync": None},
    {"event": "waiting", "run": "r"},
    {"event": "lacks", "files": [["f", 1]]},
    {"event": "need", "files": [], "stage": "/d/s", "basis": "/d"},
    {
        "event": "done",
        "sent": 0,
        "bytes": 0,
        "deleted": 0,
        "kept": [],
        "entries": 0,
        "changed": 0,
        "left": [],
        "replaced": 0,
        "aside": [],
    },
]


@steady
@given(lies(MIRROR, MIRROR_SAYS))
def test_a_mirror_that_says_anything(messages: Messages) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "f").write_text("x")
        inventory = Inventory((HOST,))
        plan = sync.plan(inventory, Sync(Path(folder), "/d"))
        report = sync.run(plan, Runtime(said(*messages)))
    error = report.results[0].error
    assert report.as_json() and (error is None or error.kind != "internal"), error
