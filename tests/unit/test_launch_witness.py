"""Whether this machine's own link is whole, as hosts tell on which the run has ended, or that stand by; who does not
stop in time."""

from __future__ import annotations

import threading
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.answers.event import RunEvent
from fleet.errors import ConnectError
from fleet.model import Host, Inventory, Job
from fleet.node.gang.ends import run_end, stopped_by
from fleet.node.gang.gang import Gang
from fleet.node.gang.verdict import own_link
from fleet.ops.run.follow import stopping as module
from fleet.ops.run.follow.stopping import STUBBORN_SECONDS, Stopping, Witness
from fleet.ops.run.plan.plan import plan
from fleet.protocol.messages.run import Verdict
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, JobEnd
from fleet.transport.local import LocalTransport
from tests.clock import HandClock
from tests.liar import Says
from tests.node.nodes import until

HOSTS = (Host("a", "127.0.0.1"), Host("b", "127.0.0.1"))


class Links(LocalTransport):
    """asked: the hosts, as they were. cut: those that do not answer; of the others each says that it has no run."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.asked, self.cut = "", cut

    def connect(self, host: Host, cancel: Cancel | None = None) -> Any:
        self.asked += host.name
        if host.name in self.cut:
            raise ConnectError("no answer", host=host.name)
        return Says({"event": "runs", "runs": []}).connect(host, cancel or Cancel())


def test_one_that_answers_is_enough() -> None:
    links = Links("a")
    witness = Witness("r", links, HandClock())
    until(lambda: witness.look(HOSTS, 0.0))
    assert not witness.look(HOSTS, float("inf")), "a silence that began later"
    assert links.asked.startswith("ab")
    links.cut = "ab"
    until(lambda: not witness.look(HOSTS, 0.0))


def test_none_answers_or_none_has_ended() -> None:
    links = Links("ab")
    witness = Witness("r", links, HandClock())
    assert not witness.look((), 0.0) and not links.asked
    until(lambda: bool(witness.look(HOSTS, 0.0)) or len(links.asked) > 3)
    assert not witness.look(HOSTS, 0.0)


def test_an_error_of_ours_in_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[Any]()
    monkeypatch.setattr(threading, "excepthook", shown.append)
    monkeypatch.setattr(Witness, "_ask", lambda *_: {}["fault"])
    witness = Witness("r", Links(""), HandClock())
    assert not witness.look(HOSTS, 0.0)
    until(lambda: bool(shown))
    assert shown[0].exc_type is KeyError and shown[0].thread.name == "witness"


def test_who_is_told_to_stop_and_has_not_in_time() -> None:
    """Not a node that has stopped and whose logs are still under way, nor one that may not have heard of it yet."""
    record = plan(Inventory(tuple(Host(name, name) for name in "abc")), Job("t.py"), Launch("t.py"), "r").record(0.0)
    gang, said, given_up = Gang({"a": (0, ()), "b": (1, ()), "c": (2, ())}), list[str](), list[str]()

    def follower(name: str) -> Any:
        return SimpleNamespace(silent_since=None, stop=lambda *_, **__: None, give_up=lambda: given_up.append(name))

    followers = {name: follower(name) for name in "abc"}
    clock, limit = HandClock(), record.about["stop_grace"] + STUBBORN_SECONDS
    runtime = Runtime(LocalTransport(), clock=clock)
    stopping = Stopping(record, gang, followers, runtime, lambda level, text, event, *_, **__: said.append(event.event))
    gang.node_status("a", {"state": "stopped", "cause": "asked"})
    followers["b"].silent_since = 1.0
    runtime.cancel.set()
    stopping.watch()
    clock.now += limit - 1.0
    stopping.watch()
    assert (given_up, said) == ([], ["stop"])
    clock.now += 1.0
    stopping.watch()
    assert (given_up, said) == (["c"], ["stop", "stubborn"])
    followers["b"].silent_since = None
    clock.now += limit
    stopping.watch()
    assert given_up == ["c", "b"], "it is there, and has had its time"


@pytest.mark.parametrize(
    ("within", "end", "interrupt"),
    [
        (inf, None, True),  # Ctrl-C
        (25.0, None, False),  # SIGTERM to fleet
        (inf, stopped_by("ada@head"), False),
        (inf, run_end("stall", "no rank wrote anything", 124), False),
        (inf, run_end("queue", "ended by Slurm: PREEMPTED", 130), False),
    ],
)
def test_ranks_have_the_signal_that_a_terminal_sends_where_one_did(
    within: float, end: Verdict | None, interrupt: bool
) -> None:
    record = plan(Inventory((Host("a", "a"),)), Job("t.py"), Launch("t.py"), "r").record(0.0)
    sent: list[bool] = []
    follower: Any = SimpleNamespace(silent_since=None, stop=lambda *_, **how: sent.append(how["interrupt"]))
    runtime = Runtime(LocalTransport(), clock=HandClock())
    stopping = Stopping(record, Gang({"a": (0, ())}), {"a": follower}, runtime, lambda *_: None)
    runtime.cancel.within = within
    if end is None:
        runtime.cancel.set()
    stopping.stop_if(end)
    stopping.watch()
    assert sent == [interrupt]


NOT_KNOWN = JobEnd("ended by a signal", 130, known=False)


@pytest.mark.parametrize(
    ("later", "by_another", "by", "code"),
    [
        (JobEnd("TIMEOUT", 124), None, "queue", 124),
        (JobEnd("CANCELLED", 130, by="stop"), None, "stop", 130),
        (NOT_KNOWN, None, "queue", 130),
        (None, None, "interrupt", 130),  # a signal of the user's
        (JobEnd("TIMEOUT", 124), stopped_by("ada@head"), "stop", 130),
    ],
)
def test_ranks_do_not_wait_for_the_reason_of_their_stop(
    later: JobEnd | None, by_another: Verdict | None, by: str, code: int
) -> None:
    """Their batch system answers late: what it answers while they save their work is the run's end."""
    record = plan(Inventory((Host("a", "a"),)), Job("t.py"), Launch("t.py"), "r").record(0.0)
    sent, answers, gang = list[Any](), [NOT_KNOWN, later], Gang({"a": (0, ())})
    follower: Any = SimpleNamespace(silent_since=None, stop=lambda grace, end, **_: sent.append(end))
    transport: Any = SimpleNamespace(ended=lambda seconds, signalled: answers.pop(0))
    runtime = Runtime(transport, clock=HandClock())
    stopping = Stopping(record, gang, {"a": follower}, runtime, lambda *_: None)
    runtime.cancel.within = 25.0
    runtime.cancel.set(asked=False)
    stopping.watch()
    assert [(it["by"], it["message"]) for it in sent] == [("queue", "ended by a signal")]
    gang.end = by_another or gang.end
    stopping.learn_why()
    assert gang.end is not None and (gang.end["by"], gang.end["code"]) == (by, code) and gang.end["who"]


def test_a_node_that_goes_while_its_last_logs_come_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """How its part ended is known; a process that stays behind brings the rest."""
    sent: list[str] = []
    monkeypatch.setattr(
        module, "stop_in_background", lambda _, hosts, *__: sent.extend(host.name for host in hosts) or 7
    )
    record = plan(Inventory(tuple(Host(name, name) for name in "ab")), Job("t.py"), Launch("t.py"), "r").record(0.0)
    gang, said, given_up = Gang({"a": (0, ()), "b": (1, ())}), list[str](), list[str]()
    clock = HandClock(10_000.0)
    hour = clock.now - 3600
    followers: dict[str, Any] = {
        "a": SimpleNamespace(silent_since=None, refusal=None, give_up=lambda: given_up.append("a")),
        "b": SimpleNamespace(silent_since=hour, refusal=None, give_up=lambda: given_up.append("b")),
    }
    runtime = Runtime(LocalTransport(), clock=clock)
    stopping = Stopping(record, gang, followers, runtime, lambda level, text, event, *_, **__: said.append(event.event))
    for host in "ab":
        gang.node_status(host, {"state": "exited", "engine_status": 0, "time": 1.0})
    stopping.watch_silence()
    assert given_up == ["b"] and gang.nodes["b"].lost is None and gang.first() is None and said == []
    for node in gang.nodes.values():
        node.ended = True
    assert stopping.clean_up() == ["b"]
    stopping.leave(None)
    assert sent == ["b"]


@pytest.mark.parametrize("cut", ["ab", "a"])
def test_spares_tell_whose_fault_it_is_that_all_are_silent(cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cut: of the spares, who does not answer."""
    monkeypatch.setattr(module, "stop_in_background", lambda *_: None)
    record = plan(Inventory(tuple(Host(name, name) for name in "xy")), Job("t.py"), Launch("t.py"), "r").record(0.0)
    gang, links, said = Gang({"x": (0, ()), "y": (1, ())}), Links(cut), list[str]()
    clock = HandClock()
    hour = clock.now - 60  # longer than the patience, less than the lease
    followers: dict[str, Any] = {
        name: SimpleNamespace(silent_since=hour, refusal=None, give_up=list, stop=lambda *_, **__: None)
        for name in "xy"
    }

    def say(level: str, message: str, event: RunEvent, *_: Any) -> None:
        said.append(event.event)

    stopping = Stopping(record, gang, followers, Runtime(links, clock=clock), say, HOSTS)

    def look() -> bool:
        clock.now += 0.5
        stopping.watch_silence()
        return len(links.asked) > 6 if "b" in cut else "lost" in said

    until(look)
    if "b" in cut:
        assert said == ["alone"], "they are waited for: it is this machine's own link"
        return
    assert said.count("lost") == 2, said
    stopping.clean_up()
    stopping.leave(None)
    assert own_link(gang) is None, "so spares may take their place"
