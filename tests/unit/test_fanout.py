"""The loop over hosts: bounded, in completion order, exceptions as values, and it ends when told to."""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from fleet import fanout
from fleet.each import on_each
from fleet.errors import ConnectError, FleetError, Interrupted, LimitError
from fleet.events import Event, Finished, Round, Started
from fleet.model import Host, Result
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Channel


def test_completion_order_and_exceptions_as_values() -> None:
    gates = [threading.Event() for _ in range(3)]

    def work(index: int) -> int:
        assert gates[index].wait(60)
        if index == 1:
            raise ValueError("one")
        return index

    gates[2].set()
    seen = []
    for item, result in fanout.run(range(3), work, cancel=Cancel()):
        seen.append((item, result if isinstance(result, int) else repr(result)))
        gates[{2: 1, 1: 0, 0: 0}[item]].set()
    assert seen == [(2, 2), (1, "ValueError('one')"), (0, 0)]


def test_never_more_than_the_limit_at_once_and_threads_go_away() -> None:
    lock, now, most, two = threading.Lock(), 0, 0, threading.Barrier(2)

    def work(item: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        if item < 2:
            two.wait(60)
        with lock:
            now -= 1

    before = threading.active_count()
    assert len(list(fanout.run(range(1000), work, limit=7, cancel=Cancel()))) == 1000
    assert 1 < most <= 7
    wait_until(lambda: threading.active_count() <= before)


def test_nothing_to_do() -> None:
    assert list(fanout.run([], lambda item: item, cancel=Cancel())) == []


def test_cancel_starts_nothing_more_and_names_the_rest() -> None:
    cancel, started = Cancel(), []

    def work(item: int) -> int:
        started.append(item)
        cancel.set()
        return item

    results = dict(fanout.run(range(50), work, limit=1, cancel=cancel))
    assert started == [0]
    assert results[0] == 0
    assert all(isinstance(results[i], Interrupted) for i in range(1, 50))


def test_cancel_leaves_work_that_does_not_end_behind() -> None:
    cancel, never, two = Cancel(), threading.Event(), threading.Barrier(2, action=lambda: cancel.set())

    def work(_: int) -> bool:
        two.wait(60)
        return never.wait(60)

    results = list(fanout.run(range(3), work, limit=2, cancel=cancel, drain=0.1))
    assert all(isinstance(result, Interrupted) for _, result in results)
    assert len(results) == 3
    never.set()


def test_cancel_lets_work_that_cleans_up_finish() -> None:
    cancel, set_back = Cancel(), threading.Event()
    cancel.on_set(set_back.set)

    def work(item: int) -> str:
        cancel.set()
        assert set_back.wait(60)
        return "cleaned up"

    assert [r for _, r in fanout.run([1], work, cancel=cancel, drain=60.0)] == ["cleaned up"]


def test_a_consumer_that_stops_ends_the_starting() -> None:
    started, closed = list[int](), threading.Event()

    def work(item: int) -> None:
        started.append(item)
        assert item < 2 or closed.wait(60)

    before, results = threading.active_count(), fanout.run(range(500), work, limit=2, cancel=Cancel())
    next(results)
    results.close()
    closed.set()
    wait_until(lambda: threading.active_count() <= before)
    assert set(started) <= {0, 1, 2, 3}, "each thread ends what it has begun, and begins no other"


def test_cancel_callbacks() -> None:
    cancel, calls = Cancel(), []
    undo = cancel.on_set(lambda: calls.append("undone"))
    cancel.on_set(lambda: calls.append("kept"))
    undo()
    cancel.set()
    assert cancel.is_set()
    assert cancel.wait(60)
    wait_until(lambda: calls == ["kept"])
    cancel.on_set(lambda: calls.append("late"))
    assert calls == ["kept", "late"]


def test_a_signal_that_does_not_end_the_wait_is_handled() -> None:
    """Another thread gets it here, for certain; it may also come just before the main thread begins to wait."""
    handled, main = threading.Event(), threading.get_ident()

    def work(_: None) -> bool:
        wait_until(lambda: sys._current_frames()[main].f_code.co_name == "wait")
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return handled.wait(60)

    before = signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    try:
        assert list(fanout.run([None], work, cancel=Cancel())) == [(None, True)]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_limits_are_raised_as_far_as_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_to.append(pair))
    fanout.check_limits(10, 64)
    assert set_to == []
    fanout.check_limits(1000, 512)
    assert set_to == [(64 + 1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(LimitError) as caught:
        fanout.check_limits(1000, 512)
    assert "ulimit -n 256" in caught.value.message
    assert "1052" in caught.value.message
    assert caught.value.hint is not None
    assert "--fanout 114" in caught.value.hint
    fanout.check_limits(1000, 114)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    fanout.check_limits(1000, 1)


class FakeSession:
    def __init__(self, host: Host, closed: list[str]) -> None:
        self.host, self._closed = host, closed

    def start(self, command: str) -> Channel:
        raise NotImplementedError

    def close(self) -> None:
        self._closed.append(self.host.name)


class FakeTransport:
    name = "fake"

    def __init__(self) -> None:
        self.closed: list[str] = []

    def connect(self, host: Host, cancel: Cancel) -> FakeSession:
        if host.name == "down":
            raise ConnectError("it is down", kind="refused")
        return FakeSession(host, self.closed)

    def close(self) -> None:
        pass


def test_each_host_has_its_result_in_order_and_is_closed() -> None:
    transport, events = FakeTransport(), list[Event]()

    def task(session: object, host: Host) -> Result:
        if host.name == "bug":
            raise KeyError("what")
        return Result(host.name, True, 0)

    hosts = [Host(n, n) for n in ("b", "down", "a", "bug")]
    results = on_each(hosts, Runtime(transport, emit=events.append), task, what="asking")
    assert [r.host for r in results] == ["b", "down", "a", "bug"]
    assert [r.ok for r in results] == [True, False, True, False]
    down, bug = results[1].error, results[3].error
    assert isinstance(down, ConnectError)
    assert (down.host, down.kind) == ("down", "refused")
    assert type(bug) is FleetError
    assert bug.kind == "internal"
    assert "KeyError: 'what'" in bug.message
    assert bug.__traceback__ is not None
    assert sorted(transport.closed) == ["a", "b", "bug"]
    assert [e.hosts for e in events if isinstance(e, Round)] == [("b", "down", "a", "bug")]
    begun = sorted((e.host, e.what) for e in events if isinstance(e, Started))
    assert begun == sorted(
        [(name, "connecting") for name in ("a", "b", "bug", "down")] + [(name, "asking") for name in ("a", "b", "bug")]
    )
    assert sorted(e.host for e in events if isinstance(e, Finished)) == ["a", "b", "bug", "down"]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
