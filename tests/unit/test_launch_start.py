"""The start of a run on all of its nodes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import FleetError, HostFailed
from fleet.events import Event, Notice
from fleet.model import Host, Inventory, Job
from fleet.ops.run.plan.plan import plan
from fleet.ops.run.start import start
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.local import LocalTransport

HOSTS = tuple(Host(name, "127.0.0.1") for name in ("b", "a", "c"))


class Nodes:
    """What every node would answer; the first one takes its time to."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.begun = fails, list[str]()
        self.another = threading.Event()

    def supervise(self, session: Session, name: str, spec: None) -> Any:
        """Python starts at once, the run when it is told to."""
        assert name == start.START
        return SimpleNamespace(host=session.host, go_on=lambda spec: self.begin(session.host.name))

    def begin(self, name: str) -> None:
        self.begun.append(name)
        if name != "b":
            self.another.set()
        elif self.another.wait(0.3):
            self.begun.append("too early")
        elif self.fails:
            raise HostFailed("no room", host="b")


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_node_is_there_before_any_other_begins(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(fails)
    monkeypatch.setattr(start, "Program", nodes.supervise)
    monkeypatch.setattr(start, "last_word", lambda *_, **__: {"event": "started", "pid": 1, "dir": "/r"})
    monkeypatch.setattr(start, "call", lambda *_, **__: None)
    draft = plan(Inventory(HOSTS), Job("t.py"), Launch("t.py"), "r")
    sessions = start.Sessions(Runtime(LocalTransport()))
    try:
        started = list(start.start_all(draft, draft.record(0.0), sessions))
    except FleetError as error:
        assert fails, error
        assert "no room" in error.message
        assert {name for name, why in (error.hosts or {}).items() if why} == {"b"}, error.hosts
    else:
        assert started == ["b", "a", "c"]
        assert not fails
    assert nodes.begun[0] == "b", nodes.begun
    assert sorted(nodes.begun[1:]) == ([] if fails else ["a", "c"]), nodes.begun


def test_a_step_counts_the_hosts_that_took_it() -> None:
    said: list[Event] = []
    out: dict[str, FleetError] = {}
    with start.step(Runtime(LocalTransport(), 5, said.append), "sync", 5, out):
        out["c"] = HostFailed("no room", host="c")
    told = said[-1]
    assert isinstance(told, Notice) and told.message.startswith("sync: 4 hosts, "), told
    assert isinstance(told.data, dict) and told.data["hosts"] == 4
