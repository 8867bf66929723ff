"""`fleet hosts` on the inventories of tests/golden/hosts: a case is a file, adding one adds a test.

A file holds the inventory, then "$ fleet hosts ARGS" lines, each followed by what the command prints: stdout, then
stderr, then "exit N" where N is not 0. FLEET_GOLDEN=write writes what is printed now; read the diff.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from fleet.cli.main import run

CASES = sorted(p for p in Path(__file__).with_name("hosts").iterdir() if p.is_file())
PROMPT = "$ fleet "


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_golden(case, tmp_path, monkeypatch, capsys):
    inventory, *commands = case.read_text().split("\n" + PROMPT)
    assert commands, f"{case.name} holds no line that starts with {PROMPT!r}"
    name = "fleet.yaml" if case.suffix == ".yaml" else "hostfile"
    (tmp_path / name).write_text(inventory + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    now = inventory
    for command in commands:
        line = command.partition("\n")[0]
        code = run(shlex.split(line))
        printed = capsys.readouterr()
        status = f"exit {code}\n" if code else ""
        output = "".join(f"{row.rstrip()}\n" for row in (printed.out + printed.err).splitlines())
        now += f"\n{PROMPT}{line}\n{output}{status}"
    if os.environ.get("FLEET_GOLDEN") == "write":
        case.write_text(now)
    assert now == case.read_text()
