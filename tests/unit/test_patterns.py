"""Patterns of ignore files: no line takes more than a moment. tests/fuzz/ignore.py holds the rest to git."""

from __future__ import annotations

import errno
import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.delivery import patterns
from fleet.delivery.patterns import parse
from fleet.errors import UsageError


def matches(glob: str, path: str) -> bool:
    pattern = parse(glob.encode(), "here", b"/")
    assert pattern is not None
    return pattern.regex.fullmatch(path.encode() if pattern.name else b"/" + path.encode()) is not None


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "glob, path",
    [
        ("*a" * 16 + "b", "a" * 200),
        ("/**" + "/*a" * 16 + "/b", "a/" * 200),
        ("/**/*a" * 8 + "/b", "aa/" * 200),
        ("**/a*/" * 8 + "b", "aa/" * 200),
    ],
)
def test_many_wildcards_end(glob: str, path: str) -> None:
    assert not matches(glob, path)
    assert matches(glob, path + "b")


@given(st.text("ab*?", min_size=1, max_size=9), st.text("ab", min_size=1, max_size=9))
def test_a_name_matches_as_in_a_shell(glob: str, name: str) -> None:
    assert matches(glob, name) == fnmatchcase(name, glob)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_an_ignore_file_of_which_it_is_not_known_whether_it_is_there_is_not_taken_as_absent(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what it leaves out would be sent. lexists() is False of what is in a folder that may not be searched."""

    def open_regular(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(patterns, "open_regular", open_regular)
    with pytest.raises(UsageError, match=f"cannot read .*: {os.strerror(code)}"):
        patterns.read_bytes(str(tmp_path / "ignore"))
