"""What fleet tells people to write stands there with what they wrote themselves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.cli.line.hints import as_typed, in_document
from fleet.cli.line.line import Line, Settings, running
from fleet.cli.main import run
from tests.command_lines import accept


@pytest.fixture
def typed() -> Iterator[Settings]:
    with running(Line()) as line:
        yield line.settings


def test_a_hint_repeats_what_the_line_said(typed: Settings) -> None:
    typed.inventory, typed.hosts = "lab", "lab02"
    assert as_typed("compare them, then 'fleet setup-ssh'") == "compare them, then 'fleet -i lab -w lab02 setup-ssh'"
    assert (
        as_typed("fleet exec -- df -h; or fleet sync")
        == "fleet -i lab -w lab02 exec -- df -h; or fleet -i lab -w lab02 sync"
    )
    three = "'fleet ps' shows it, 'fleet logs -f' its output, 'fleet stop r' ends it"
    assert as_typed(three) == three.replace("fleet ", "fleet -i lab -w lab02 ")
    assert as_typed("fleet hosts", selection=False) == "fleet -i lab hosts"


@pytest.mark.parametrize(
    "text",
    [
        "fleet lab up 4",
        "fleet help exec",
        "see fleet exec --help",
        "fleet sets it per node",
        "/opt/fleet exec",
        "",
        "fleet -i other -w a exec -- true",
    ],
)
def test_what_is_no_command_over_hosts_stays(text: str, typed: Settings) -> None:
    typed.inventory, typed.hosts = "lab", "lab02"
    assert as_typed(text) == text


def test_a_hint_that_says_who_keeps_its_own(typed: Settings) -> None:
    typed.hosts, typed.exclude = "gpu[01-04]", "gpu02"
    assert as_typed("fleet setup-ssh -w gpu03") == "fleet -x gpu02 setup-ssh -w gpu03"
    assert as_typed("fleet exec -- grep -w x") == 'fleet -w "gpu[01-04]" -x gpu02 exec -- grep -w x'


def test_setup_ssh_is_named_without_a_transport_that_it_refuses(typed: Settings) -> None:
    typed.transport = "openssh"
    assert as_typed("fleet setup-ssh -w a") == "fleet setup-ssh -w a"
    assert as_typed("fleet check") == "fleet --transport openssh check"


@pytest.mark.parametrize("value", ["my hosts", "gpu[01-04],@a", "$(id)", "it's", 'a"b', "~/x", "a\\b", "!x", "#a"])
def test_what_is_repeated_is_read_back_by_a_shell(value: str, typed: Settings) -> None:
    typed.inventory = typed.hosts = value
    ctx = accept(as_typed("fleet check"))
    assert shlex.split(as_typed("fleet check")) == ["fleet", "-i", value, "-w", value, "check"]
    assert ctx.info_name == "check"


def test_it_is_told_so_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my hosts").write_text("a\nb\n")
    assert run(["-i", "my hosts", "exec", "-w", "a", "--", ""]) == 2
    assert capsys.readouterr().err.splitlines()[1] == '  hint: fleet -i "my hosts" -w a exec -- nvidia-smi -L'
    for words in (["--", ""], ["--shell", ""], ["--shell", " "]):
        assert run(["-i", "my hosts", "exec", *words]) == 2
        assert capsys.readouterr().err.startswith("error: the command is empty\n")
    assert run(["exec", "--", ""]) == 2
    assert capsys.readouterr().err.splitlines()[1] == "  hint: fleet exec -- nvidia-smi -L"
    assert run(["-i", "my hosts", "--json", "exec", "-w", "a", "--", ""]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == 'fleet -i "my hosts" -w a exec -- nvidia-smi -L'


def test_a_document_has_hints_as_they_are_printed(typed: Settings) -> None:
    typed.inventory, typed.hosts = "lab", "lab02"
    host = {"stdout": "fleet sync", "error": {"kind": "sync", "message": "fleet sync", "hint": "then 'fleet sync'"}}
    told = in_document({"hosts": {"a": host}, "next": ["fleet logs x"], "error": {"kind": "inventory", "hint": None}})
    assert told["hosts"]["a"]["error"] == {**host["error"], "hint": "then 'fleet -i lab -w lab02 sync'"}  # type: ignore[dict-item]
    assert told["hosts"]["a"]["stdout"] == "fleet sync" and told["next"] == ["fleet -i lab -w lab02 logs x"]
    assert in_document({"kind": "inventory", "hint": "fleet hosts"})["hint"] == "fleet -i lab hosts"
