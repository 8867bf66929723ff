"""A container that has lost its connection, and has another one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.node.container import member as module
from fleet.node.container.member import Member
from fleet.node.gang.elastic import gang_of
from tests.node.nodes import until


class StandIn:
    """What follows a node, as slow as on a busy one: it reports an end when it is to stop."""

    def __init__(self, spec: Any, folder: str) -> None:
        self.folder, self.once, self.say = folder, False, print

    def follow(self) -> None:
        while not self.once:
            time.sleep(0.005)
        self.say({"event": "end"})


def test_what_followed_the_node_before_reports_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(run: str, attempt: int | None) -> str:
        time.sleep(0.05)  # a home on NFS
        return f"/proc/self/fd/{os.open(tmp_path, os.O_RDONLY)}"

    monkeypatch.setattr(module, "Follower", StandIn)
    monkeypatch.setattr(module, "opened", opened)
    sent: list[dict[str, Any]] = []
    hello: Any = {"about": {"least": 1, "most": 1}}
    member = Member(lambda _: line, hello, SimpleNamespace(), {})
    line: Any = SimpleNamespace(send=lambda **message: sent.append(message))
    member.line, member.folder, member.begin = line, str(tmp_path), {"run": "r", "attempt": 0, "host": "h"}
    member.gang = gang_of({"h": (0, [0])}, 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        member.resumed()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)  # of one folder at a time
    assert sent == []
    member.leave()
