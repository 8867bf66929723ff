"""The password file's two forms, and a password's one life."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import UsageError
from fleet.model import Host
from fleet.ops.setup_ssh.passwords import Passwords, ask_once, parse, read_password_file
from tests.in_process import FleetOver, fleet_here

NAMES = ("gpu01", "gpu02", "gpu03")


def take(passwords: Passwords, name: str) -> str | None:
    return passwords.take(Host(name, name))


@pytest.mark.parametrize("text", ["s3 cret#: ", "s3 cret#: \n", "\ns3 cret#: \r\n\n"])
def test_one_line_is_the_password_of_all(text: str) -> None:
    passwords = parse(text, NAMES, "f")
    assert [take(passwords, name) for name in NAMES] == ["s3 cret#: "] * 3


@pytest.mark.parametrize("text", ["gpu99 x", "root: x", "[a x", "gpu01", "gpu01:x", "* "])
def test_one_line_that_names_no_host_is_a_password(text: str) -> None:
    assert take(parse(text, NAMES, "f"), "gpu01") == text


def test_lines_by_host_and_node_set_with_a_default() -> None:
    passwords = parse("# ours\ngpu[01-02]\tone two\ngpu03: th:ree\n*  rest\n", NAMES, "f")
    assert [take(passwords, name) for name in NAMES] == ["one two", "one two", "th:ree"]
    assert take(parse("gpu01 a\n* b\n", NAMES, "f"), "gpu02") == "b"
    assert take(parse("gpu01 a\ngpu02 b\n", NAMES, "f"), "gpu03") is None
    assert take(parse("gpu01 just one line\n", NAMES, "f"), "gpu01") == "just one line"


@pytest.mark.parametrize("text,line", [("gpu01 a\nhunter2 b\n", 2), ("gpu01 a\ngpu01 b\n", 2), ("x\ny\n", 1)])
def test_errors_name_the_line_and_never_its_text(text: str, line: int) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, NAMES, "f")
    assert caught.value.where == f"f:{line}"
    assert "hunter2" not in str(caught.value) + str(caught.value.hint)


@given(st.text(max_size=40))
def test_any_file_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text, NAMES, "f")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "pw"
    file.write_text("secret\n")
    file.chmod(mode)
    with pytest.raises(UsageError) as caught:
        read_password_file(str(file), NAMES)
    assert caught.value.hint == f"chmod 600 {file}"


class Asked(FleetOver):
    """Notes the password of its only host, and reaches none."""

    def connect(self, password_for: Any = None) -> Any:
        if password_for is not None:
            self.way.append(password_for(self.inventory.hosts[0]))
            raise UsageError("enough")
        return fleet_here().way


def test_a_file_of_the_whole_inventory_does_for_some_of_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another host's password is nobody's: it was tried on the one that is selected."""
    monkeypatch.setenv("HOME", str(tmp_path))
    known: list[str | None] = []
    both = fleet_here("gpu01", "gpu02").inventory
    file = tmp_path / "pw"
    for text in ("gpu[01-02] of both\n", "gpu01 one\ngpu02 two\n", "gpu02 two\n"):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(UsageError, match="enough"):
            Asked(inventory=both, everyone=both, way=known).select("gpu01").setup_ssh(password_file=file)
    assert known == ["of both", "one", None]


def test_missing_binary_and_empty_files(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    for content in (None, b"\xff\xfe", b"\n"):
        if content is not None:
            file.write_bytes(content)
            file.chmod(0o600)
        with pytest.raises(UsageError):
            read_password_file(str(file), NAMES)


def test_a_password_is_handed_out_once_a_host_and_shown_nowhere() -> None:
    passwords = Passwords({"gpu01": "secret"})
    assert take(passwords, "gpu01") == "secret"
    assert take(passwords, "gpu01") is None
    assert "secret" not in repr(passwords)


def test_it_is_asked_for_once_and_only_where_none_is_known() -> None:
    asked: list[list[str]] = []

    def ask(names: object) -> str:
        asked.append(list(names))  # type: ignore[call-overload]
        return "typed"

    passwords = Passwords({"gpu01": "own"})
    assert ask_once(passwords, ["gpu01", "gpu02"], ask) and ask_once(passwords, ["gpu03"], ask)
    assert asked == [["gpu02"]]
    assert not ask_once(Passwords(), ["gpu01"], lambda names: None)
