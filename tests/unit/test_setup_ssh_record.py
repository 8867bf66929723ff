"""What setup-ssh keeps of what it made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleet import codec
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


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        *((part, None) for part in ("files", "keys", "needs", "uses", "at", "kept")),
        *(
            ("files", value)
            for value in ([], {"known_hosts": {}}, {"known_hosts": {"lines": [99]}}, {"known_hosts": 1})
        ),
        *(("keys", value) for value in ([], {"id_ed25519": 1})),
        *(("needs", value) for value in ([], {"known_hosts": ["x"]})),
        *(("uses", value) for value in (3, [None])),
        ("modes", {"config": ["0644"]}),
        ("kept", 5),
        ("leaving", "no"),
    ],
)
def test_a_record_that_lacks_a_part_is_damaged(tmp_path: Path, part: str, instead: Any) -> None:
    """An undo by it would leave on a host what is not in it, and report that all is gone."""
    record = Record.load(tmp_path, "x.yaml")
    record.host("gpu1").note("known_hosts", ["b"])
    record.save()
    document = json.loads(record.path.read_text())
    of = document["hosts"]["gpu1"]
    if instead is None:
        del of[part]
    else:
        of[part] = instead
    record.path.write_text(json.dumps(document))
    with pytest.raises(HostFailed, match="damaged"):
        Record.load(tmp_path, "x.yaml")


def test_lines_of_a_record_that_are_no_text_are_damage(tmp_path: Path) -> None:
    record = Record.load(tmp_path, "x.yaml")
    record.host("gpu1").note("known_hosts", ["b"])
    record.save()
    record.path.write_text(record.path.read_text().replace('"b"', "17"))
    with pytest.raises(HostFailed, match="damaged"):
        Record.load(tmp_path, "x.yaml")


def test_a_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It states modes and leaving only where there are any."""
    record = Record.load(tmp_path, "x.yaml")
    record.host("gpu1").note("known_hosts", ["b"])
    record.save()
    document = json.loads(record.path.read_text())
    for trace in (document["head"], document["hosts"]["gpu1"]):
        for part in ("modes", "leaving"):
            trace.pop(part, None)
    record.path.write_text(json.dumps(document))
    assert Record.load(tmp_path, "x.yaml").hosts == record.hosts


def test_the_lines_of_a_large_mesh_are_walked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of a thousand hosts has millions of references to them, and is written twice per host."""
    walked: list[Any] = []

    def plain(value: Any) -> Any:
        walked.append(value)
        return codec.plain(value)

    monkeypatch.setattr("fleet.ops.setup_ssh.record.plain", plain)
    record = Record.load(tmp_path, "x.yaml")
    record.host("gpu1").note("known_hosts", ["b"])
    record.host("gpu1").need("known_hosts", ["b"])
    record.host("gpu1").uses.append("c")
    record.save()
    assert walked and not any(trace.files or trace.needs or trace.uses for trace in walked)
    assert Record.load(tmp_path, "x.yaml").hosts == record.hosts


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_record_is_not_kept_in_a_home_of_another_users(tmp_path: Path) -> None:
    (tmp_path / ".fleet").mkdir()
    os.chown(tmp_path / ".fleet", 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user id 12345"):
        Record.load(tmp_path, "fleet.yaml").save()
