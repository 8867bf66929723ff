"""One member as the head sees it: where it is dialled, and how long it may get nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.delivery.chain import member as members
from fleet.delivery.chain.coordinator import Coordinator
from fleet.delivery.chain.handlers import HANDLERS
from fleet.delivery.chain.member import Member
from fleet.delivery.manifest import Manifest
from fleet.model import Host
from tests.unit.test_hostile_fuzz import AT, NEED, Outbox, files

MANIFEST = Manifest(((0, "x", "f", 0o644, 4, 0, ""), (0, "y", "f", 0o644, 4, 0, "")))


@pytest.mark.parametrize(
    ("said", "reached", "data", "dialled"),
    [
        ("10.0.0.5", "10.0.0.5", None, ["10.0.0.5", "gpu1"]),  # a name that only this machine's ssh config knows
        ("192.168.0.7", "10.0.0.5", "192.168.0.7", ["192.168.0.7", "10.0.0.5", "gpu1"]),
        ("10.0.0.5", "10.0.0.5", "192.168.0.7", ["10.0.0.5", "192.168.0.7", "gpu1"]),
        ("198.51.100.1", "10.0.0.5", None, ["10.0.0.5", "gpu1"]),
        ("198.51.100.1", None, "192.168.0.7", ["192.168.0.7", "gpu1"]),
        ("127.0.0.1", None, None, ["gpu1"]),
        (None, None, None, ["gpu1"]),
    ],
)
def test_of_a_nodes_own_word_only_the_port_is_taken(
    said: str | None, reached: str | None, data: str | None, dialled: list[str]
) -> None:
    one = Member(Host("gpu1", "gpu1", data_address=data), ["/d"], "secret", reached=reached)
    one.take_need({**NEED, "address": said}, MANIFEST, True)
    assert one.addresses == [[address, 9] for address in dialled]
    assert one.own_addresses[0] == [said, 9]


@pytest.mark.parametrize(
    "said", [[], [{"event": "hello"}], [{"event": "hello"}, NEED]], ids=["nothing", "hello", "all but done"]
)
def test_a_node_that_only_lives_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]]) -> None:
    both = {name: Member(Host(name, name), ["/d"], "secret") for name in ("e", "a")}
    through: list[str] = []
    head = Coordinator(
        list(both.values()),
        MANIFEST,
        lambda event: None,
        files(),
        lambda member, epoch: None,
        locked=through.append,
        handlers=HANDLERS,
    )
    for member in both.values():
        head.opened(member, Outbox())  # type: ignore[arg-type]
    for message in said:
        head.handle("e", message)
    for message in ({"event": "hello"}, NEED):
        head.handle("a", message)
    if len(said) > 1:
        head.handle("e", {**AT, "received": 8})
    head.tick()
    assert both["e"].state != "out"
    monkeypatch.setattr(members, "HELLO_SECONDS", -1.0)
    monkeypatch.setattr(members, "SLOWEST_DISK", 1 << 40)
    both["a"].work = 1 << 50  # it has a large disk to read
    head.tick()
    assert both["e"].state == "out" and both["e"].cancel.is_set() and "e" in through
    assert both["e"].error is not None and both["e"].error.kind == "stalled"
    head.handle("a", {"event": "done", "files": 2, "bytes": 8, "problems": [], "left": [], "aside": []})
    assert both["a"].state == "done" and head.over.is_set()


def test_whoever_gets_a_file_wrong_from_everybody_is_given_up_and_feeds_nobody() -> None:
    both = {name: Member(Host(name, name), ["/d"], "secret") for name in ("e", "a")}
    served: list[tuple[str, int]] = []
    head = Coordinator(
        list(both.values()),
        MANIFEST,
        lambda event: None,
        files(),
        lambda member, epoch: served.append((member.host.name, epoch)),
        handlers=HANDLERS,
    )
    outboxes = {name: Outbox() for name in both}
    for name, member in both.items():
        head.opened(member, outboxes[name])  # type: ignore[arg-type]
        for message in ({"event": "hello"}, NEED):
            head.handle(name, message)
    epochs: list[int] = []
    for _ in range(10):
        told = [said["epoch"] for said in outboxes["a"].told if isinstance(said, dict) and said["op"] == "next"]
        epochs.append(max([epoch for name, epoch in served if name == "e"] + told))
        head.handle("e", {"event": "corrupt", "file": 1, "epoch": epochs[-1]})
        head.tick()
    # twice from here, twice from the other, who has the place before it by then, once more from here
    assert both["e"].state == "out" and both["a"].state == "receiving"
    assert [name for name, _ in served] == ["e", "e", "a", "e"]
    assert "did not arrive as it was sent" in str(both["e"].error) and len(set(epochs)) == 5
