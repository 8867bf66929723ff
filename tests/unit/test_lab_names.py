"""/etc/hosts: the lab's block goes in and out without another byte changing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.lab.names import update, with_block

ONE, TWO = Path("/root/.fleet/lab/one"), Path("/root/.fleet/lab/on")  # one a prefix of the other
NAMES = {"one01": "198.18.0.11", "one02": "198.18.0.12"}


@given(st.text())
def test_in_and_out_gives_the_same_text(text: str) -> None:
    assert with_block(with_block(text, ONE, NAMES), ONE, {}) == text


@given(st.text(alphabet="a\n#\t "), st.booleans())
def test_two_labs_leave_in_any_order(text: str, first_in_first_out: bool) -> None:
    both = with_block(with_block(text, ONE, NAMES), TWO, {"on01": "198.18.4.11"})
    for lab in (ONE, TWO) if first_in_first_out else (TWO, ONE):
        both = with_block(both, lab, {})
    assert both == text


def test_a_second_up_replaces_the_block() -> None:
    text = with_block(with_block("127.0.0.1 localhost\n", ONE, NAMES), ONE, {"one01": "198.18.8.11"})
    assert text.count("one01") == 1
    assert "198.18.8.11\tone01\n" in text


def test_a_block_without_its_end_takes_no_foreign_line() -> None:
    cut = with_block("a\n", ONE, NAMES).rpartition("# fleet")[0] + "10.0.0.1 mine\n"
    assert with_block(with_block(cut, ONE, NAMES), ONE, {}) == cut


def test_update_keeps_bytes_and_mode(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    before = b"127.0.0.1 localhost\xff no newline at the end"
    file.write_bytes(before)
    file.chmod(0o640)
    with file.open("rb") as seen:
        update(file, ONE, NAMES)
        assert seen.read() == before  # who reads it meanwhile has all of it: it was replaced, not rewritten
    assert b"198.18.0.12\tone02\n" in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o640
    update(file, ONE, {})
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_update_writes_in_place_where_the_file_is_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(source: bytes, target: bytes) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rename", busy)
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n")
    update(file, ONE, NAMES)
    assert "one01" in file.read_text()
    assert list(tmp_path.iterdir()) == [file]
