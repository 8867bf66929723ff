"""Whether this machine's own link is whole, as hosts tell on which the run has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.ops.launch import witness as module
from fleet.ops.launch.witness import Witness
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport
from tests.node.nodes import until

HOSTS = (Host("a", "127.0.0.1"), Host("b", "127.0.0.1"))


class Links(LocalTransport):
    """asked: the hosts, as they were. cut: those that do not answer."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.asked, self.cut = "", cut

    def connect(self, host: Host, cancel: Cancel | None = None) -> Session:
        self.asked += host.name
        if host.name in self.cut:
            raise ConnectError("no answer", host=host.name)
        return super().connect(host, cancel)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[Links], Witness]:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    return lambda links: Witness("r", links)


def test_one_that_answers_is_enough(ask: Callable[[Links], Witness]) -> None:
    links = Links("a")
    witness = ask(links)
    until(lambda: witness.look(HOSTS, 0.0))
    assert not witness.look(HOSTS, float("inf")), "a silence that began later"
    assert links.asked.startswith("ab")
    links.cut = "ab"
    until(lambda: not witness.look(HOSTS, 0.0))


def test_none_answers_or_none_has_ended(ask: Callable[[Links], Witness]) -> None:
    links = Links("ab")
    witness = ask(links)
    assert not witness.look((), 0.0) and not links.asked
    until(lambda: bool(witness.look(HOSTS, 0.0)) or len(links.asked) > 3)
    assert not witness.look(HOSTS, 0.0)
