"""What is said while a run goes on: of a line in its logs, and of ranks that are done long before others."""

from __future__ import annotations

from pathlib import Path

import pytest

import fleet
from fleet.events import Notice
from fleet.model import Host, Inventory

JOB = """#!/bin/sh
[ "$RANK" = 0 ] && exit
echo "n1:7:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>"
# until it was told of, or nobody does
for i in $(seq 600); do [ -e told ] && exit; sleep 0.1; done
exit 9
"""


def test_each_word_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("fleet.node.gang.silence.EARLY_SECONDS", 0.3)
    (tmp_path / "job.sh").write_text(JOB)
    here = fleet.open(Inventory((Host("n1", "127.0.0.1"),)), transport="local")
    said = []
    with here.launch("./job.sh", engine="command", nproc_per_node=3, preflight=False) as run:
        for event in run:
            if isinstance(event, Notice) and event.level == "warning":
                said.append((event.message, event.hint))
                if len(said) == 2:
                    (tmp_path / "told").touch()
    assert run.report.exit_code == 0
    (sockets, early) = sorted(said)
    assert sockets[0] == "n1: NCCL sends over TCP sockets (NET/Socket)"
    assert early[0] == "rank 0 on n1 ended 60 s ago with exit code 0, 2 others still run" and "drop_last" in str(
        early[1]
    )
