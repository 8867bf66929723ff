"""What is said with remote/mirror.py on one host, while it is sent what it lacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fleet.errors import ConnectError, HostFailed, Reason
from fleet.ops.runtime import Runtime
from fleet.ops.shape import FAILED, fits
from fleet.transport.base import Cancel
from fleet.transport.frames import Frame, Nonsense
from fleet.transport.program import Program

SILENCE_SECONDS = 30.0
JOIN_SECONDS = 5.0


def told(message: Mapping[str, Any], host: str, shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message of a node; Nonsense when something in it is not of the shape that it must have."""
    for name, part in shape.items():
        if not fits(message, {name: part}):
            raise Nonsense(f"{name!r} is told in another way", host)
    return message


class Conversation:
    """The J frames of remote/mirror.py, one question at a time."""

    def __init__(self, program: Program, runtime: Runtime, waiting: Callable[[str], None]) -> None:
        self._program, self._waiting = program, waiting
        self._waited = False
        self._frames: Iterator[Frame] = program.frames(silence=SILENCE_SECONDS, cancel=runtime.cancel)

    def answer(self) -> dict[str, Any]:
        for frame in self._frames:
            if frame.kind == "J":
                message, name = frame.json(), self._program.host.name
                if message.get("event") == "waiting":
                    if not self._waited:  # a node that says so without end fills nobody's screen
                        self._waiting(str(message.get("run")))
                    self._waited = True
                elif message.get("event") == "failed":
                    told(message, name, FAILED)
                    raise HostFailed(
                        Reason.of_node(message["message"]),
                        hint=message["hint"],
                        host=name,
                        kind="busy" if message.get("busy") is True else "sync",
                    )
                else:
                    return message
        raise ConnectError("the node ended the sync early", host=self._program.host.name, kind="protocol")


class Delivery(threading.Thread):
    """Sends a host what it lacks, while its answers are listened to: it may fail or freeze meanwhile."""

    def __init__(self, program: Program, deliver: Callable[[Cancel], None], cancel: Cancel) -> None:
        super().__init__(name=f"delivery {program.host.name}", daemon=True)
        self._program, self._deliver, self._cancel = program, deliver, Cancel()
        self._forget = cancel.on_set(self._cancel.set)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._deliver(self._cancel)
        except Exception as error:
            self.error = error
            self._program.close()

    def __enter__(self) -> Delivery:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._forget()
        cause = self.error
        if error is not None:
            self._cancel.set()
            self._program.close()  # what waits for the node to read ends, too
        self.join(JOIN_SECONDS)
        if error is None:
            cause = self.error  # what is raised from here on after an error comes of our own cutting it off
        if cause is not None and getattr(error, "kind", None) != "sync":  # that is the node's own word
            raise cause from None
