"""A fleet command line or a fleet.api.Fleet in this process, on any transport; what a command line showed, and what it
left in a folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import fleet.cli.main
from fleet.api import Fleet
from fleet.cli.main import run as typed
from fleet.model import Host, Inventory
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport

__all__ = [
    "FleetOver",
    "LocalTransport",
    "Outcome",
    "command_line",
    "fleet_here",
    "fleet_over",
    "selected",
    "session_here",
    "snapshot",
    "typed",
]


class Terminal(io.TextIOWrapper):
    """What is shown to somebody who looks, without colours."""

    def __init__(self) -> None:
        self.written = io.BytesIO()
        super().__init__(self.written, encoding="utf-8", errors="strict")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.written.getvalue().decode("utf-8")


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    faults: list[Any]
    took: float

    def document(self) -> dict[str, Any]:
        """The last JSON document on stdout, by the letter of JSON."""

        def constant(name: str) -> Any:
            raise AssertionError(f"{name} is no JSON")

        value = [json.loads(line, parse_constant=constant) for line in self.out.splitlines()][-1]
        assert isinstance(value, dict)
        return value


def reached_by(transport: Any) -> AbstractContextManager[object]:
    """Has all hosts of fleet.api, and of the command line, reached by that transport."""
    return mock.patch("fleet.api.Fleet.connect", lambda *args: transport)


def command_line(argv: Sequence[str], transport: Any) -> Outcome:
    """fleet ARGV in this process, on that transport; what it showed, and what its threads raised."""
    out, err = Terminal(), Terminal()
    faults: list[Any] = []
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(reached_by(transport))
        stack.enter_context(mock.patch.dict(os.environ, {"FLEET_DEBUG": "1", "TERM": "dumb"}))
        stack.enter_context(mock.patch.object(threading, "excepthook", faults.append))
        stack.enter_context(mock.patch.object(sys, "stdout", out))
        stack.enter_context(mock.patch.object(sys, "stderr", err))
        code = fleet.cli.main.run(argv)
    return Outcome(code, out.text(), err.text(), faults, time.monotonic() - began)


@dataclass(frozen=True)
class FleetOver(Fleet):
    """A Fleet whose hosts are reached over `way`, which stays open."""

    way: Any = None

    def connect(self, password_for: Any = None) -> Any:
        return self.way


def fleet_over(way: Any, *hosts: Host | str, **more: Any) -> FleetOver:
    """Returns the Fleet of these hosts, names or Hosts, over a transport or a session."""
    inventory = Inventory(tuple(Host(host, host) if isinstance(host, str) else host for host in hosts))
    return FleetOver(inventory=inventory, everyone=inventory, way=way, **more)


def fleet_here(*hosts: Host | str, **more: Any) -> FleetOver:
    """Returns the Fleet of these hosts, each of which is this machine."""
    return fleet_over(LocalTransport(), *hosts, **more)


def selected(inventory: Inventory, hosts: str | None, exclude: str | None = None) -> Inventory:
    """Returns the inventory with the hosts of -w and -x alone."""
    return FleetOver(inventory=inventory, everyone=inventory).select(hosts, exclude).inventory


def session_here(name: str = "here") -> Session:
    """Returns a session with a host, which is this machine."""
    return LocalTransport().connect(Host(name, "127.0.0.1"), Cancel())


def snapshot(folder: Path, but: Sequence[str]) -> dict[str, tuple[int, int]]:
    """What is in a folder, without the subfolders `but`."""
    found = {}
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if os.path.join(where, name) not in but]
        for name in [*folders, *names]:
            info = os.lstat(os.path.join(where, name))
            found[os.path.join(where, name)] = (info.st_mtime_ns if name in names else 0, info.st_size)
    return found
