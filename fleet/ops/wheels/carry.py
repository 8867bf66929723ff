"""The one door through which wheels reach nodes: a folder named by its content, mirrored as code is."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fleet.model import Host, Inventory, Result
from fleet.ops import sync
from fleet.ops.execute import ExecOptions
from fleet.ops.execute import execute as execute_line
from fleet.ops.execute import make_plan as plan_line
from fleet.ops.runtime import Runtime
from fleet.ops.wheels.cache import cache
from fleet.ops.wheels.wheel import Wheel

FOLDER = "~/.fleet/wheels"
CLEAN = 'cd ~/.fleet/wheels 2>/dev/null && rm -rf -- "$0" ".$0.fleet-sync"'


def digest_of_set(wheels: Sequence[Wheel]) -> str:
    """Names a set of wheels by what is in it."""
    text = "\n".join(sorted(f"{w.sha256} {w.path.name}" for w in wheels))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def carry(inventory: Inventory, wheels: Sequence[Wheel], runtime: Runtime) -> tuple[str, tuple[Result, ...]]:
    """Bring exactly these wheels to every host of the inventory: (folder there, results). A second call sends what
    is missing; files are verified by digest before they have their name."""
    name = digest_of_set(wheels)
    base = cache() / "wheels"
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    stage = Path(tempfile.mkdtemp(prefix=f"send-{name}-", dir=base))
    try:
        for wheel in wheels:
            source, target = wheel.path.resolve(), stage / wheel.path.name
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)
        plan = sync.SyncPlan(stage, {h.name: f"{FOLDER}/{name}" for h in inventory.hosts}, whole=True)
        report = sync.execute(inventory, plan, runtime)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return f"{FOLDER}/{name}", report.results


def forget(inventory: Inventory, hosts: Sequence[Host], folder: str, runtime: Runtime) -> None:
    """Take the carried files away again where they were installed; what fails is left to the next time."""
    there = Inventory(tuple(hosts), env=inventory.env)
    options = ExecOptions(argv=("sh", "-c", CLEAN, folder.rpartition("/")[2]), timeout=60.0)
    quiet = Runtime(runtime.transport, runtime.fanout, cancel=runtime.cancel)
    execute_line(there, plan_line(there, options), options, quiet)
