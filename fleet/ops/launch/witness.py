"""Whether this machine's own link is whole while all that is left of a run is silent: hosts where it has ended tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

from fleet.errors import FleetError
from fleet.model import Host
from fleet.protocol.messages.run import RunsHere, RunsSpec
from fleet.transport.base import Cancel, Transport
from fleet.transport.program import call

ASK_SECONDS, RETRY_SECONDS = 30.0, 2.0


class Witness:
    """Asks one host after the other, in a thread that ends by itself, again and again while look() is called."""

    def __init__(self, run_id: str, transport: Transport) -> None:
        self._spec: RunsSpec = {"prefix": run_id, "live": True}
        self._transport = transport
        self._answered: float | None = None  # when it was asked, by time.monotonic(), if the last time went well
        self._thread: threading.Thread | None = None

    def look(self, hosts: Sequence[Host], since: float) -> bool:
        """Whether the last time that they were asked one answered, and that was since then."""
        if hosts and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._ask, args=(hosts,), name="witness", daemon=True)
            self._thread.start()
        return self._answered is not None and self._answered >= since

    def _ask(self, hosts: Sequence[Host]) -> None:
        began = time.monotonic()
        self._answered = began if any(map(self._answers, hosts)) else None
        time.sleep(RETRY_SECONDS)

    def _answers(self, host: Host) -> bool:
        try:
            with closing(self._transport.connect(host, Cancel())) as session:
                call(session, "run.list_runs", self._spec, RunsHere, timeout=ASK_SECONDS)
        except FleetError:
            return False
        return True
