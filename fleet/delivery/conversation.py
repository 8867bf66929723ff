"""Exchanges messages with node/delivery/code_sync.py on one host while the host is sent what it lacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from fleet.errors import ConnectError, HostFailed, Reason
from fleet.protocol.frames import EXIT, MESSAGE
from fleet.protocol.messages.code import Refused, Waiting
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Watchdog
from fleet.transport.frames import Frame, decoded
from fleet.transport.program import Program

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
SILENCE_SECONDS = 30.0
JOIN_SECONDS = 5.0
MOST_WAITS = 3  # it waits at one place, for as long as a run takes to begin


class Conversation:
    """The J frames of node/delivery/code_sync.py, one question at a time."""

    def __init__(self, program: Program, runtime: Runtime, waiting: Callable[[str], None]) -> None:
        self._program, self._waiting = program, waiting
        self._waited = 0
        self.watchdog = Watchdog(clock=program.clock)
        self._frames: Iterator[Frame] = program.frames(
            silence=SILENCE_SECONDS, cancel=runtime.cancel, watchdog=self.watchdog
        )

    def answer(self, kind: TypeForm[T]) -> T:
        """The next message of this kind. HostFailed where it is a refusal."""
        name = self._program.host.name
        for frame in self._frames:
            if frame.kind == EXIT:
                continue
            message = frame.json() if frame.kind == MESSAGE else {}
            if message.get("event") == "waiting" and self._waited < MOST_WAITS:
                if not self._waited:  # a node that repeats it without end does not fill the screen
                    self._waiting(decoded(Waiting, message, name)["run"])
                self._waited += 1
            elif message.get("event") == "failed":
                refused = decoded(Refused, message, name)
                raise HostFailed(
                    Reason.of_node(refused["message"]),
                    hint=refused["hint"],
                    host=name,
                    kind="busy" if refused.get("busy") else "sync",
                )
            else:
                return decoded(kind, message, name)
        raise ConnectError("the node ended the sync early", host=name, kind="protocol")


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
        if cause is not None and getattr(error, "kind", None) != "sync":  # that is the node's own message
            raise cause from None
