"""Plans of `fleet launch`: one file a case in tests/golden/launch. Adding a case is adding a file.

A case is JSON: {"inventory": {...}, "job": {...}, "options": {...}, "facts": {...}, "plan": ... | "error": ...}.
FLEET_GOLDEN=write writes what comes out today; read the diff before you commit it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.model import Host, Inventory, Job
from fleet.ops.run.plan.placement import Known
from fleet.ops.run.plan.plan import Plan, plan
from fleet.requests.launch import Launch

CASES = sorted((Path(__file__).parent / "launch").glob("*.json"))


def made(case: dict[str, Any]) -> Plan | FleetError:
    stored = case["inventory"]
    tuples = [{k: tuple(v) if isinstance(v, list) else v for k, v in host.items()} for host in stored["hosts"]]
    hosts = tuple(Host(**host) for host in tuples)
    inventory = Inventory(hosts, env=stored.get("env", {}))
    asked = {k: tuple(v) if isinstance(v, list) else v for k, v in case["job"].items()}
    job = {k: asked.pop(k) for k in [*asked] if k in Job.__dataclass_fields__}
    facts = {name: Known(**f) for name, f in case.get("facts", {}).items()}
    try:
        options = Launch("t.py", **{"folder": "/head/here", **case.get("options", {}), **asked})
        return plan(inventory, Job(**job), options, "train-20260101-000000-abcd").refine(facts)
    except FleetError as error:
        return error


def plan_of(case: dict[str, Any]) -> dict[str, Any]:
    got = made(case)
    if isinstance(got, FleetError):
        return {"error": str(got), "hint": got.hint}
    return {"plan": json.loads(json.dumps(got.describe())), "command": json.loads(got.nodes[0].start.command_file())}


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_the_plan_is_as_recorded(path: Path) -> None:
    case = json.loads(path.read_text())
    got = plan_of(case)
    if os.environ.get("FLEET_GOLDEN") == "write":
        given = {k: case[k] for k in ("inventory", "job", "options", "facts") if k in case}
        path.write_text(json.dumps({**given, **got}, indent=1) + "\n")
    else:
        assert got == {k: v for k, v in case.items() if k not in ("inventory", "job", "options", "facts")}


def test_there_are_cases() -> None:
    assert len(CASES) >= 8
