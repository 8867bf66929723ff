"""Parity rules: facts -> findings and the rendered screen, one file a case in tests/golden/check.

A case holds {"hosts": {NODESET: changes}, "changes": {NAME: {dotted path: value}}, "slots", "devices", "engine",
"unreachable", "width"}, changes being laid over facts.json; beside it stands the screen that it must give.
FLEET_GOLDEN=write writes the screens anew: read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from fleet.cli.verbs.check import screen
from fleet.inventory.nodeset import expand
from fleet.model import Host
from tests.host_facts import facts_of
from tests.verdicts import Checked, of_check, unreachable

GOLDEN = Path(__file__).parents[1] / "golden/check"
CASES = sorted((GOLDEN / "cases").glob("*.json"))


def checked(case: dict[str, Any]) -> Checked:
    devices = tuple(case["devices"]) if "devices" in case else None
    hosts, facts = list[Host](), dict[str, Any]()
    for nodeset, common in case["hosts"].items():
        for name in expand(nodeset):
            hosts.append(Host(name, name, slots=case["slots"], devices=devices))
            if name not in case.get("unreachable", []):
                facts[name] = facts_of(name, common, case.get("changes", {}).get(name, {}))
    return of_check(hosts, facts, case.get("engine", "torchrun"), unreachable(case.get("unreachable", [])))


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_screens(path: Path) -> None:
    case = json.loads(path.read_text())
    text = click.unstyle(screen(checked(case), width=case.get("width", 160), verbose=True))
    text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    expected = path.with_suffix(".txt")
    if os.environ.get("FLEET_GOLDEN") == "write":
        expected.write_text(text)
    assert text == expected.read_text()


@pytest.mark.parametrize("name, width", [("one-deviates", 80), ("more-kinds-than-columns", 80), ("a-split", 50)])
def test_narrow_screens(name: str, width: int) -> None:
    """Nothing breaks inside a word."""
    path = CASES[0].with_name(f"{name}.json")
    colored = screen(checked(json.loads(path.read_text())), width=width)
    text = click.unstyle(colored)
    expected = path.with_name(f"{name}.{width}-columns.txt")
    if os.environ.get("FLEET_GOLDEN") == "write":
        expected.write_text(text)
    assert text == expected.read_text() and "\x1b[33m" in colored
    assert max(map(len, text.splitlines())) <= width


def test_there_are_cases() -> None:
    assert len(CASES) >= 12
