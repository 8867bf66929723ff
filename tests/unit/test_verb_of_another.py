"""Verbs as CONTRIBUTING.md has them, those of tests/verbs_of_another.py, typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.line.verbs import VERBS, Verb
from tests.in_process import typed


def shown(
    words: list[str], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setitem(VERBS, name, Verb(f"tests.verbs_of_another:{name}", "For this test."))
    (folder / "hosts").write_text("here slots=1\n")
    assert typed(["-i", str(folder / "hosts"), "--transport", "local", name, *words]) == 0, capsys.readouterr()
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("option, said", [(None, "here: there"), ("--dry-run", "here: would run true")])
def test_it_needs_a_command_and_a_line(
    option: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown([option] if option else [], "ping", tmp_path, monkeypatch, capsys) == said
    assert json.loads(shown(["--json"], "ping", tmp_path, monkeypatch, capsys))["verb"] == "ping"


def test_work_of_its_own_is_in_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown([], "kernel", tmp_path, monkeypatch, capsys) == "here: Linux"
    assert shown(["--dry-run"], "kernel", tmp_path, monkeypatch, capsys) == "would ask here for the kernel"
    document = json.loads(shown(["--json"], "kernel", tmp_path, monkeypatch, capsys))
    assert document["verb"] == "kernel" and document["hosts"]["here"]["kernel"] == "Linux", document
    planned = json.loads(shown(["--json", "--dry-run"], "kernel", tmp_path, monkeypatch, capsys))
    assert planned["plan"] == {"asks": "uname -s"}, planned
