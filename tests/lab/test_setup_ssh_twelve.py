"""Twelve hosts, all 144 pairs, by plain ssh and not by what setup-ssh says of itself."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from tests.lab.setup_ssh_tools import Head
from tests.lab.virtual_lab import LabFactory

ALL = 'for h in "$@"; do ssh -o BatchMode=yes "$h" hostname </dev/null; done'


@pytest.mark.slow
def test_twelve_hosts_and_every_pair(lab_factory: LabFactory, tmp_path: Path) -> None:
    lab = lab_factory(12)
    head = Head(lab, tmp_path, lab.inventory)
    first = head.setup("--tofu")
    assert first.returncode == 0, first.stderr
    assert "144 between hosts (each also with itself)" in first.stdout
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda name: lab.inside(name, "sh", "-c", ALL, "sh", *lab.names), lab.names))
    assert [a.stdout.decode().split() for a in answers] == [lab.names] * 12
    before = head.everything()
    report = head.report()
    assert report["changed"] is False and report["pairs"] == {"verified": 144, "from_head": 12, "failed": []}
    assert head.everything() == before
