"""What setup-ssh keeps of what it made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.errors import HostFailed, UsageError
from fleet.ops.setup_ssh.record import Record, block_name


def test_block_names_differ_by_folder_and_stay(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fleet.yaml").write_text("")
    one, two = (block_name(str(tmp_path / folder / "fleet.yaml")) for folder in ("a", "b"))
    assert one != two and one == block_name(str(tmp_path / "a" / ".." / "a" / "fleet.yaml"))
    assert " " not in block_name("od d\n>>> name") and "\n" not in block_name("od d\n>>> name")


def test_the_record_comes_back_and_is_written_only_when_it_changed(tmp_path: Path) -> None:
    record = Record.load(tmp_path, "x.yaml")
    assert record.empty
    record.head.note("known_hosts", ["a \udcff", "b"])
    record.host("gpu1").note("known_hosts", ["b"])
    record.host("gpu1").keys["id_ed25519"] = "ssh-ed25519 AAAA"
    assert record.save() and not record.save()
    assert record.path.stat().st_mode & 0o777 == 0o600
    again = Record.load(tmp_path, "x.yaml")
    assert again.head == record.head and again.hosts == record.hosts and not again.save()
    record.path.write_text("{}")
    with pytest.raises(HostFailed, match="damaged"):
        Record.load(tmp_path, "x.yaml")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_record_is_not_kept_in_a_home_of_another_users(tmp_path: Path) -> None:
    (tmp_path / ".fleet").mkdir()
    os.chown(tmp_path / ".fleet", 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user id 12345"):
        Record.load(tmp_path, "fleet.yaml").save()
