"""Runs steps that may hang: each in its own thread, all with one deadline."""

import _signal
import os
import time

from fleet.node.base.types import Any, Callable, Mapping
from fleet.node.base.wire import listen, send_exit, send_json, start, start_thread


def gather(
    todo: "list[tuple[str, Callable[[], dict[str, Any]]]]", seconds: float, more: "Mapping[str, float] | None" = None
) -> "dict[str, Any]":
    """Runs all steps at once. Returns the facts of the steps that ended within `seconds`. The fact "timed_out" has the
    names of the others, and "failed" has name -> error of the steps that raised. todo: (name, function) of each step.
    more: name of a step -> how many seconds this function waits for the step after all steps before it have ended."""
    answers: dict[str, dict[str, Any]] = {}

    def work(name: str, function: "Callable[[], dict[str, Any]]") -> None:
        try:
            answers[name] = function()
        except Exception as error:  # if one step meets an unknown /proc or /sys, the other facts are still needed
            answers[name] = {"failed": {name: "%s: %s" % (type(error).__name__, error)}}

    deadline = time.monotonic() + seconds
    for name, thread in [(name, start_thread(work, name, function)) for name, function in todo]:
        left = max(0.0, deadline - time.monotonic())
        thread.join(min(left, (more or {}).get(name, left)))
    answered = dict(answers)
    facts: dict[str, Any] = {"timed_out": [name for name, _ in todo if name not in answered], "failed": {}}
    for name, _ in todo:
        for key, value in answered.get(name, {}).items():
            if isinstance(facts.get(key), dict):
                facts[key].update(value)
            else:
                facts[key] = value
    return facts


def kill_all() -> None:
    """Kills this process and its process group. It sends SIGKILL, as a process that hangs in a broken mount ignores all
    other signals."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, _signal.SIGKILL)
    os._exit(0)


def begin(on_message: "Callable[[dict[str, Any]], None] | None" = None) -> "Any":
    """Begins a program that gathers facts, and returns its spec. Puts the process into its own process group, and
    starts heartbeats. Calls on_message() with each control line. The program ends when the control lines end."""
    spec = start()
    if os.getsid(0) != os.getpid():  # a process that sshd starts leads a session, and so has its own group already
        os.setpgid(0, 0)
    listen(on_message, kill_all)
    return spec


def finish(message: "Mapping[str, Any]") -> None:
    """Sends the program's last message and ends the program, even if the head is gone."""
    try:
        send_json(message)
        send_exit(0)
    except OSError:
        pass
    kill_all()
