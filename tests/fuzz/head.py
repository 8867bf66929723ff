"""What the head does in a process of its own, which may be killed: see Forker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fleet.errors import FleetError
from fleet.model import Host, Inventory
from fleet.ops import get
from fleet.requests.runs import Get
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport

BOOT = "from tests.fuzz.head import main; main()"


def main() -> None:
    """Get a path to a folder, as {"what", "to", "how"} on stdin says; what was wrong comes as a line of JSON."""
    asked = json.loads(sys.stdin.read())
    try:
        plan = get.plan(Inventory((Host("n1", "n1"),)), Get(asked["what"], to=Path(asked["to"]), **asked["how"]))
        error = get.run(plan, Runtime(LocalTransport())).results[0].error
    except FleetError as refused:
        error = refused
    print(json.dumps({"error": None if error is None else str(error)}))
