"""A host as a run's record keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.model import Host
from fleet.ops.run.kept.record import host_elsewhere


def test_what_goes_on_finds_a_key_named_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = host_elsewhere(Host("a", "a", identity_file="keys/k", env={"TOKEN": "x"}))
    assert stored.identity_file == str(tmp_path / "keys/k") and stored.env == {}
    assert host_elsewhere(Host("a", "a", identity_file="~/k")).identity_file == "~/k"
