"""One member as the head sees it: where it is dialled, and how long it may get nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chain_head import AT, DONE, MANIFEST, NEED, ChainHead, member
from tests.unit.conftest import Clock


@pytest.mark.parametrize(
    ("own", "reached", "data", "dialled"),
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
    own: str | None, reached: str | None, data: str | None, dialled: list[str]
) -> None:
    one = member("gpu1", data, reached)
    one.take_need({**NEED, "address": own}, MANIFEST)  # type: ignore[arg-type]
    assert one.addresses == [[address, 9] for address in dialled]
    assert one.own_addresses[0] == [own, 9]


@pytest.mark.parametrize(
    "messages", [[], [{"event": "hello"}], [{"event": "hello"}, NEED]], ids=["nothing", "hello", "all but done"]
)
def test_a_node_that_only_lives_holds_nobody_up(clock: Clock, messages: list[dict[str, Any]]) -> None:
    head = ChainHead("e", "a")
    head.receive("e", *messages)
    head.receive("a", {"event": "hello"}, NEED)
    if len(messages) > 1:
        head.receive("e", {**AT, "received": 8})
    head.tick()
    assert head.members["e"].state != "out"
    head.members["a"].work = 1 << 50  # it has a large disk to read
    while head.members["e"].state != "out" and clock.now < 500.0:
        clock.now += 1.0
        for name, each in head.members.items():
            if each.state == "receiving":
                head.receive(name, {**AT, "received": 8 if name == "e" else 4})
        head.tick()
    error = head.members["e"].error
    assert head.members["e"].state == "out" and head.members["e"].cancel.is_set() and "e" in head.through
    assert error is not None and error.kind == "stalled"
    head.receive("a", DONE)
    assert head.members["a"].state == "done" and head.over


def test_whoever_gets_a_file_wrong_from_everybody_is_given_up_and_feeds_nobody() -> None:
    head = ChainHead("e", "a")
    for name in ("e", "a"):
        head.receive(name, {"event": "hello"}, NEED)
    epochs: list[int] = []
    for _ in range(10):
        fed = [message["epoch"] for message in head.sent("a", "next")]
        epochs.append(max([epoch for name, epoch in head.served if name == "e"] + fed))
        head.receive("e", {"event": "corrupt", "file": 1, "epoch": epochs[-1]})
        head.tick()
    # twice from here, twice from the other, who has the place before it by then, once more from here
    assert head.members["e"].state == "out" and head.members["a"].state == "receiving"
    assert [name for name, _ in head.served] == ["e", "e", "a", "e"]
    assert "did not arrive as it was sent" in str(head.members["e"].error) and len(set(epochs)) == 5
