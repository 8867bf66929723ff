"""run.json: what started a run, and all that is needed to start it once more. ops/runs/again.py reads it."""

from __future__ import annotations

import platform
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fleet
from fleet.errors import FleetError
from fleet.events import Notice
from fleet.inventory.secret import kept_of, masked
from fleet.model import Host, Inventory
from fleet.ops.launch.code import SECONDS, look
from fleet.ops.launch.differences import differences
from fleet.ops.launch.folder import RunFolder, private, read_object
from fleet.ops.launch.kinds import VERSION
from fleet.ops.launch.plan import Plan
from fleet.ops.launch.record import RunRecord, host_as_json
from fleet.runtime import Runtime
from fleet.transport.base import Transport

RUN, DIFF = "run.json", "code.diff"
VARIABLES = ("env", "env_expand")


def first_event() -> dict[str, Any]:
    """What the first event tells."""
    return {"version": VERSION, "fleet": fleet.__version__}


class Origin:
    """Writes it at once, and once more with what git says, which is asked while the nodes start. Emits what is not as
    it was in the run that this one repeats."""

    def __init__(
        self, plan: Plan, record: RunRecord, folder: RunFolder, runtime: Runtime, inventory: Inventory
    ) -> None:
        self._document = document(plan, record, runtime.transport, inventory)
        self._folder, self._runtime = folder, runtime
        repeats = plan.options.repeats
        self._before = read_object(plan.options.runs_dir / repeats / RUN) if repeats else {}
        folder.write_json(RUN, self._document)
        self._thread = threading.Thread(target=self._add_code, name="fleet-code", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all of it is written; git has its own deadline."""
        self._thread.join(SECONDS + 1)

    def _add_code(self) -> None:
        code, diff = look(self._document["fleet"]["folder"])
        self._document["code"] = {**code.as_json(), "diff": DIFF if diff else None}
        try:
            if diff:
                with open(self._folder.path / DIFF, "wb", opener=private) as file:
                    file.write(diff)
            self._folder.write_json(RUN, self._document)
        except (OSError, FleetError) as error:
            self._runtime.emit(Notice("warning", f"{RUN} does not tell of the code: {error}"))
        for said, hint in differences(self._before, self._document):
            record = self._folder.event(
                "differs", level="warning", message=said, hint=hint, run=self._document["repeats"]
            )
            self._runtime.emit(Notice("warning", said, None, hint, record))


def document(plan: Plan, record: RunRecord, transport: Transport, inventory: Inventory) -> dict[str, Any]:
    """Of variables that may be secret the names only, with null. inventory: before hosts were replaced by spares."""
    options = plan.options
    asked = {name: kept_of(value) if name in VARIABLES else value for name, value in options.asked.items()}
    return {
        **plan.describe(),
        "started": record.started,
        "owner": record.owner,
        "repeats": options.repeats,
        "fleet": {
            "version": fleet.__version__,
            "python": platform.python_version(),
            "argv": masked(options.typed),
            "folder": options.cwd,
            "transport": transport.name,
        },
        "launch": asked,
        "inventory": _inventory(inventory, plan.hosts),
        "facts": {name: dict(known.seen) for name, known in plan.facts.items()},
        "code": None,
    }


def _inventory(inventory: Inventory, used: tuple[Host, ...]) -> dict[str, Any]:
    """hosts: all, also those not selected, which may be gateways to others. selected, used: as -w has them."""
    source = Path(inventory.source)
    return {
        "source": str(source.absolute()) if source.exists() else None,
        "whole": not inventory.unselected and all(host.devices is None for host in inventory.hosts),
        "selected": ",".join(map(_word, inventory.hosts)),
        "used": ",".join(map(_word, used)),
        "env": kept_of(inventory.env),
        "hosts": [_host(host) for host in (*inventory.hosts, *inventory.unselected)],
    }


def _word(host: Host) -> str:
    return host.name if host.devices is None else f"{host.name}:{','.join(map(str, host.devices))}"


def _host(host: Host) -> Mapping[str, Any]:
    return {**host_as_json(host), "devices": None, "env": kept_of(host.env)}
