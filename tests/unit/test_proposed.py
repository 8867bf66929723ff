"""What a hint may propose: nothing that a node could abuse, that leaks, or that costs more with each host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.cli.line import hints
from fleet.cli.main import cli
from fleet.cli.main import run as typed

INVENTORY = "hosts:\n  gpu[0001-1000]: {}\n"


@pytest.fixture(autouse=True)
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(INVENTORY)
    with hints.of_line():
        hints.begin(cli, ("fleet", "check"))
        yield


@pytest.mark.parametrize(
    "hint",
    [
        "fleet launch --env HF_TOKEN=abc train.py",
        "fleet -w gpu9999 exec -- true",
        "fleet sync nothere",
        "'fleet launhc x' does it",
        "fleet launch --no-such-option SCRIPT",
    ],
)
def test_what_would_fail_or_leak_is_left_out(hint: str) -> None:
    assert hints.proposed(hint) is None
    assert hints.proposed(f"see the docs; {hint}; or ask") == "see the docs; ask"


@pytest.mark.parametrize(
    "hint",
    [
        "fleet launch -vh",
        "fleet -v lab",
        "fleet get latest --to .",
        "fleet init -w new1",
        "fleet launch --module pkg.train",
        "fleet -w gpu0001 exec -- true",
        "fleet -w HOSTS play ...",
        "'fleet launch' needs a script",
        "fleet sync --wheels FILE",
    ],
)
def test_what_works_stays(hint: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert hints.proposed(hint) == hint
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("named", ["/dev/stdin", "/dev/zero", "/proc/self/environ", "other.yaml"])
def test_no_file_that_a_node_names_is_read(named: str) -> None:
    assert hints.proposed(f"fleet -i {named} -w gpu9 ps") == f"fleet -i {named} -w gpu9 ps"


def test_a_long_line_of_a_node_takes_no_time() -> None:
    began = time.process_time()
    hints.proposed("fleet " + "-a " * 1300 + "x")
    assert time.process_time() - began < 5


def test_a_thousand_hosts_each_with_a_hint() -> None:
    began = time.process_time()
    hosts = {f"gpu{n:04}": {"hint": f"'fleet setup-ssh -w gpu{n:04}' installs a key"} for n in range(1, 1001)}
    assert hints.in_document({"hosts": hosts})["hosts"]["gpu0500"]["hint"]
    assert time.process_time() - began < 60


def test_the_next_lines_of_a_document_are_those_of_the_screen() -> None:
    document = {"next": ["fleet check", "fleet launch --sync train.py"], "remedy": "fleet sync nothere"}
    assert hints.in_document(document) == {"next": ["fleet check", "fleet launch --sync train.py"], "remedy": ""}


def test_a_misspelt_verb_before_a_request_for_help_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(["launhc", "-vh"]) == 2
    said = capfd.readouterr()
    assert said.out == "" and "hint: did you mean: fleet launch -vh" in said.err
