"""Wheels into a real interpreter of this machine: what the tests of that share."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.model import Host, Inventory, Report
from fleet.ops import wheels
from fleet.requests.sync import SyncWheels
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.wheelmaker import make_env


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training interpreter, on a "node" whose home is not ours."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return make_env(tmp_path / "env")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


def sync(folder: Path, *pythons: Path, runtime: Runtime | None = None, **options: Any) -> Report:
    hosts = tuple(Host(f"n{i}", "127.0.0.1", python=str(p)) for i, p in enumerate(pythons, 1))
    inventory = Inventory(hosts)
    plan = wheels.plan(inventory, SyncWheels(folder, **options))
    return wheels.run(plan, runtime or Runtime(LocalTransport()))


def states(report: Report) -> list[dict[str, str]]:
    assert report.ok, [str(r.error) for r in report.results]
    return [dict(r.data["wheels"]) for r in report.results]


def error(report: Report) -> FleetError:
    assert not report.ok and report.results[0].error
    return report.results[0].error


def says(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def site(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python3*/site-packages"))
