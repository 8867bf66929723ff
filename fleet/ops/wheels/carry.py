"""The one door through which wheels reach nodes: a folder named by its content, and by the head that it is from."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence

from fleet.delivery.bring import bring
from fleet.model import Inventory, Result
from fleet.ops import execute
from fleet.ops.turn import cache
from fleet.ops.wheels.cache import fresh, head_id
from fleet.ops.wheels.wheel import Wheel
from fleet.protocol.state import CODE_STATE, DATA_STATE, HOME, WHEELS
from fleet.runtime import Runtime

# also what syncs left that were never brought to their end
CLEAN = (
    f'cd ~/{HOME}/{WHEELS} 2>/dev/null && rm -rf -- "$0" ".$0{CODE_STATE}" ".$0{DATA_STATE}" && '
    f"find . -maxdepth 1 -mtime +7 -name '*{'?' * 24}-{'?' * 8}*' -exec rm -rf -- {{}} +"
)


def digest_of_set(wheels: Sequence[Wheel]) -> str:
    """Names a set of wheels by what is in it."""
    text = "\n".join(sorted(f"{w.sha256} {w.path.name}" for w in wheels))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def folder_of(name: str) -> str:
    """Where the wheels of that name lie on the hosts; other heads' folders are others."""
    return f"~/{HOME}/{WHEELS}/{name}-{head_id()}"


def carry(inventory: Inventory, wheels: Sequence[Wheel], name: str, runtime: Runtime) -> tuple[Result, ...]:
    """Bring exactly these wheels to folder_of(name) on every host of the inventory. A second call by the same name
    sends what is missing; files are verified by digest before they have their name. The caller has its turn."""
    with fresh(cache() / "wheels" / f"send-{name}") as stage:
        for wheel in wheels:
            source, target = wheel.path.resolve(), stage / wheel.path.name
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)
        return bring(inventory.hosts, stage, folder_of(name), sum(w.size for w in wheels), runtime)


def forget(there: Inventory, folder: str, runtime: Runtime) -> None:
    """Take the carried files away again where they were installed; what fails is left to the next time."""
    if there.hosts and not runtime.cancel.is_set():
        options = execute.ExecOptions(argv=("sh", "-c", CLEAN, folder.rpartition("/")[2]), timeout=60.0)
        quiet = Runtime(runtime.transport, runtime.fanout, cancel=runtime.cancel)
        execute.run(execute.plan(there, options), quiet)
