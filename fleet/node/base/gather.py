"""Runs steps that may hang: each in its own thread, all with one deadline."""

import _signal
import os
import time

from fleet.node.base.types import Any, Callable, Mapping
from fleet.node.base.wire import listen, send_exit, send_json, start, start_thread


def gather(
    todo: "list[tuple[str, Callable[[], dict[str, Any]]]]", seconds: float, more: "Mapping[str, float] | None" = None
) -> "dict[str, Any]":
    """Runs all steps at once. Returns the facts of those that ended within `seconds`, and the names of the others.
    more: step -> the seconds that it has left when all steps before it have ended."""
    answers: dict[str, dict[str, Any]] = {}

    def work(name: str, function: "Callable[[], dict[str, Any]]") -> None:
        try:
            answers[name] = function()
        except Exception as error:  # one odd /proc or /sys must not cost the other facts
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
    """Kills this process and all its children. A process that hangs in a broken mount ignores weaker signals."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, _signal.SIGKILL)
    os._exit(0)


def begin(on_message: "Callable[[dict[str, Any]], None] | None" = None) -> "Any":
    """Returns the spec of a program that gathers facts. Puts the process into its own group, and starts heartbeats.
    Calls on_message() with each control line. The program ends when they end."""
    spec = start()
    if os.getsid(0) != os.getpid():  # under sshd it leads a session, and so its group
        os.setpgid(0, 0)
    listen(on_message, kill_all)
    return spec


def finish(message: "Mapping[str, Any]") -> None:
    """Sends the program's only response and ends the program, also if the head is gone."""
    try:
        send_json(message)
        send_exit(0)
    except OSError:
        pass
    kill_all()
