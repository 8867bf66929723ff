"""What Ctrl-C is said to do: it differs from verb to verb, and from before a run's start to behind it."""

from __future__ import annotations

import os
import signal
import threading

import click
import pytest

from fleet.cli import context
from fleet.cli.line.line import Line, running
from fleet.cli.main import cli
from fleet.cli.run.follow import _signals
from fleet.cli.run.launch_view import LaunchView
from fleet.cli.screen import terminal
from fleet.events import Notice
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport
from tests.events import happened


@pytest.mark.parametrize(
    "verb, said",
    [
        ("logs", "no run is stopped"),
        ("ps", "no run is stopped"),
        ("stacks", "no run is stopped"),
        ("top", "no run is stopped"),
        ("exec", "stopping"),
        ("stop", "stopping"),
    ],
)
def test_who_only_looks_on_is_told_that_nothing_is_stopped(
    verb: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "leave_if_stuck", lambda: None)
    cancel, command = Cancel(), cli.get_command(click.Context(cli), verb)
    assert command is not None
    with running(Line(command=command)), context.interrupts(cancel):
        signal.raise_signal(signal.SIGINT)
    assert cancel.is_set()
    assert capfd.readouterr().err == f"interrupted: {said}; once more to leave at once\n"


@pytest.mark.parametrize("event", ["plan", "attached"])
def test_ranks_are_stopped_only_where_some_may_run(event: str, capfd: pytest.CaptureFixture[str]) -> None:
    runtime, view = Runtime(LocalTransport()), LaunchView(["a"])
    view(Notice("info", "sync: 1 host, 0.1 s", happened=(happened("step"),)))
    with _signals(runtime, (), view):
        signal.raise_signal(signal.SIGINT)
    assert runtime.cancel.is_set()
    assert capfd.readouterr().err == "interrupted: no rank runs yet, and none is started\n"
    runtime = Runtime(LocalTransport())
    view(Notice("info", "ranks meet at a:1234", happened=(happened(event),)))
    with _signals(runtime, (), view):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    first, second = capfd.readouterr().err.splitlines()
    assert first == "interrupted: stopping all ranks; once more kills them" and "killing all ranks" in second


def test_a_thread_limit_keeps_no_interrupt_from_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    left = list[int]()
    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(terminal._bottom, "held", 0)
    cancel, runtime = Cancel(), Runtime(LocalTransport())
    with running(Line(command=cli)), context.interrupts(cancel):
        signal.raise_signal(signal.SIGINT)
        assert cancel.is_set() and cancel.wait(0) and not left
        signal.raise_signal(signal.SIGTERM)
        assert left == [130]
    with _signals(runtime, (), LaunchView(["a"])):
        signal.raise_signal(signal.SIGINT)
    assert runtime.cancel.is_set()
