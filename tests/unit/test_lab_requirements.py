"""What keeps a lab from coming up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fleet.errors import FleetError, LabError, UsageError
from fleet.lab.lab import Lab
from fleet.lab.processes import kill_all, require
from fleet.node.base.processes import start_time, state_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_LAB", raising=False)
    monkeypatch.delenv("FLEET_LAB_DIR", raising=False)
    return tmp_path


def fails_with(error: type[FleetError], message: str, hint: str, do: object) -> None:
    with pytest.raises(error, match=message) as refused:
        do()  # type: ignore[operator]
    assert hint in (refused.value.hint or "")


def test_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for verb in (Lab().up, Lab().down, lambda: Lab().cut(["lab01"])):
        fails_with(LabError, "needs root", "sudo", verb)


def test_not_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    fails_with(LabError, "darwin", "Linux", Lab().up)


def test_missing_tools_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool in ("sshd", "tc") else f"/bin/{tool}")
    fails_with(LabError, "needs sshd, not found", "apt install openssh-server", require)
    fails_with(LabError, "needs sshd, tc,", "openssh-server", lambda: require(shaped=True))


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_too_few_or_too_many_hosts(count: int) -> None:
    fails_with(UsageError, "1 to 1000 hosts", "", lambda: Lab().up(count))


@pytest.mark.parametrize("disk", ["16x", "0", "", "1g,mode=777", "-5m"])
def test_a_disk_that_is_no_size(disk: str) -> None:
    fails_with(UsageError, "not a size", "512m", lambda: Lab().up(1, disk=disk))


def test_a_process_that_is_found_late_is_waited_for() -> None:
    """One in the middle of exec shows no environment, by which it is found. Its host's name is free when it is gone."""
    child = subprocess.Popen(["sleep", "60"])
    born = start_time(child.pid)
    assert born is not None
    found = iter([{}, {child.pid: born}])
    threading.Timer(0.5, child.wait).start()  # as this machine's init does
    kill_all(lambda: next(found, {}))
    assert not state_of(child.pid)
