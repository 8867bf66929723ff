"""Whether an address leads to the host that it is meant to lead to."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from fleet.protocol.frames import MESSAGE
from tests.free_port import free_port
from tests.node.nodes import Running


def answer(home: Path, listens: bool, **spec: Any) -> dict[str, Any]:
    """Its last message; the first says whether others may come."""
    with Running("preflight.reach", {"port": free_port(), "token": "mine", "seconds": 6.0, **spec}, home) as program:
        first, last = (frame.json() for frame in program.frames() if frame.kind == MESSAGE)
    assert first == {"listening": listens}
    return dict(last)


def test_an_address_that_leads_back_here_is_not_another_hosts(tmp_path: Path) -> None:
    visits = [
        {"id": 7, "address": "127.0.0.1", "token": "mine"},
        {"id": 8, "address": "127.0.0.1", "token": "another's"},
        {"id": 9, "address": "255.255.255.255", "token": "mine"},  # nobody's: a lab beside this may be at any other
    ]
    assert answer(tmp_path, True, visits=visits, visitors=2) == {"reached": {"7": True}, "error": None}


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = answer(tmp_path, False, port=taken.getsockname()[1], visits=[], visitors=1)
    assert said["reached"] == {} and "Address already in use" in said["error"]


def test_done_ends_the_visits(tmp_path: Path) -> None:
    """Where packets vanish nobody answers: the head says when it is enough."""
    spec = {"port": free_port(), "token": "mine", "seconds": 300.0, "visitors": 1}
    visits = [{"id": 1, "address": "127.0.0.1", "port": free_port(), "token": "another's"}]
    with Running("preflight.reach", {**spec, "visits": visits}, tmp_path) as program:
        messages = (frame.json() for frame in program.frames() if frame.kind == MESSAGE)
        assert next(messages) == {"listening": True}
        program.send({"op": "done"})
        assert next(messages) == {"reached": {}, "error": None}
