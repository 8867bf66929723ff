"""Sends what both roles of a chain report to the head, and ends them."""

import os

from fleet.node.base.beneath import shown
from fleet.node.base.errors import Refused, failed
from fleet.node.base.types import Any, Callable, chain
from fleet.node.base.wire import send_exit, send_json, start_thread

say: "Callable[[chain.Refused], None]" = send_json


class Mixed(Refused):
    """Some of the destinations are this node's own, some another node writes; the head then takes them one by one."""


def fail(error: "Any") -> None:
    """Report what ends this program, and end it."""
    failure = failed(error, shown, again=", then run this again: it goes on where it ended")
    try:
        say(
            {
                "event": "failed",
                "message": failure["message"],
                "hint": failure["hint"],
                "kind": "mixed" if isinstance(error, Mixed) else "sync",
            }
        )
        send_exit(1)
    finally:
        os._exit(1)


def worker(target: "Callable[..., Any]", *args: "Any") -> None:
    """A thread whose failure is this program's."""

    def run() -> None:
        try:
            target(*args)
        except BrokenPipeError:
            os._exit(1)
        except Exception as error:
            fail(error)

    start_thread(run)
