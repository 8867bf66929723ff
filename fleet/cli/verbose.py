"""What -v adds to every verb, on stderr: where each host was reached, how long it took there, and where a fault of
fleet itself is."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from fleet.cli.output import clean, clean_lines, talk
from fleet.errors import FleetError
from fleet.events import Emit, Event, Finished, Started
from fleet.model import Inventory
from fleet.transport.base import Transport


def telling(emit: Emit, inventory: Inventory, transport: Transport, say: Callable[[str], None] = talk) -> Emit:
    """An Emit that passes all on, and tells of each host that is through."""
    begun: dict[str, tuple[float, str]] = {}

    def told(event: Event) -> None:
        emit(event)
        if isinstance(event, Started):
            since, _ = begun.get(event.host, (time.monotonic(), ""))
            begun[event.host] = since, event.what
        elif isinstance(event, Finished):
            since, what = begun.pop(event.host, (time.monotonic(), ""))
            error = event.result.error
            how = "ok" if event.result.ok else error.kind if error else f"exit status {event.result.exit_status}"
            what = what if what != "connecting" else ""  # how everything begins
            took = f"{time.monotonic() - since:.2f} s"
            words = [place(event.host, inventory, transport), what, took, how]
            say(clean(f"{event.host}: {', '.join(word for word in words if word)}"))
            if error is not None and error.__traceback__ is not None and error.kind == "internal":
                say(clean_lines("".join(traceback.format_exception(error)).rstrip("\n")))

    return told


def place(name: str, inventory: Inventory, transport: Transport) -> str:
    """ "root@10.0.0.1:22": the inventory over ~/.ssh/config over defaults, as far as this transport knows of such."""
    with suppress(FleetError, KeyError):
        return str(transport.resolve(inventory.host(name)) or "")
    return ""
