"""A node that is alive and gets nowhere, or says something else without end, is given up by sync, whatever it carries.
(get: test_get_hostile.py)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.delivery.chain.source import NodeSource
from fleet.errors import FleetError
from fleet.model import Host, Inventory
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Watchdog
from tests.clock import HandClock
from tests.liar import Says

HELLO = {"event": "hello", "dest": "/w", "known": None}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "src").mkdir()
    (tmp_path / "src/f").write_text("x")
    return tmp_path / "src"


def carried(tree: Path, node: Says) -> FleetError:
    plan = sync.plan(Inventory((Host("gpu1", "gpu1"),)), Sync(tree, "/w"))
    (result,) = sync.run(plan, Runtime(node, 1)).results  # type: ignore[arg-type]
    assert result.error is not None
    return result.error


@pytest.mark.parametrize("said", [[], [HELLO], [HELLO, {"event": "waiting", "run": "r"}]])
def test_code_beats_are_no_progress(said: list[Any], tree: Path) -> None:
    error = carried(tree, Says(*said, beats=True))
    assert error.kind == "stalled" and "alive, and has got nowhere for 120 s" in error.message


def test_code_output_or_waiting_without_end(tree: Path) -> None:
    assert carried(tree, Says(endless=True)).kind == "protocol"
    assert carried(tree, Says(HELLO, *[{"event": "waiting", "run": "r"}] * 9, beats=True)).kind == "protocol"


def test_data_of_a_node_that_never_lists_it(tree: Path) -> None:
    session: Any = Says(beats=True)
    session.host = Host("gpu1", "gpu1")
    there = NodeSource(session, ["/x"], {}, None, 10.0, Cancel())
    try:
        with pytest.raises(FleetError, match="alive, and has got nowhere"):
            there.read()
    finally:
        there.end()


def test_a_watchdog_counts_no_time_in_which_this_process_was_held_up() -> None:
    clock = HandClock()
    dog = Watchdog(1.0, clock)
    clock.now += 3.3  # nobody asked: Ctrl-Z, or a digest of all that is here
    assert dog.seconds() < 1.0
