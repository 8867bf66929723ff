"""What a hint may propose: nothing that a node could abuse, that leaks, or that costs more with each host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from fleet.cli.line import hints
from fleet.cli.line.command import parsed
from fleet.cli.line.line import Line, running
from fleet.cli.line.verbs import VERBS
from fleet.cli.main import cli
from fleet.cli.main import run as typed
from fleet.inventory.secret import masked_argv

INVENTORY = "hosts:\n  gpu[0001-1000]: {}\n"


@pytest.fixture(autouse=True)
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(INVENTORY)
    with running(Line(("fleet", "check"), cli)):
        yield


@pytest.mark.parametrize(
    "hint",
    [
        "fleet launch --env HF_TOKEN=abc train.py",
        "fleet launch --env=HF_TOKEN=abc SCRIPT",
        "fleet launch --env HF_TOKEN=*** SCRIPT",
        "fleet launch SCRIPT --api-key abc",
        "fleet exec -- curl --token=abc",
        "fleet exec -- hf_AbCdEfGh12345678",
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
        "fleet setup-ssh --replace-key gpu0001 --password-file FILE",
        "fleet launch --env HF_TOKEN=... SCRIPT",
        "fleet exec -- generate --max-tokens 512",
    ],
)
def test_what_works_stays(hint: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert hints.proposed(hint) == hint
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("named", ["/dev/stdin", "/dev/zero", "/proc/self/environ", "other.yaml"])
def test_no_file_that_a_node_names_is_read(named: str) -> None:
    assert hints.proposed(f"fleet -i {named} -w gpu9 ps") == f"fleet -i {named} -w gpu9 ps"


def test_fleets_own_options_are_not_taken_for_secrets() -> None:
    ctx = click.Context(cli)
    verbs = [cli.get_command(ctx, name) for name in VERBS]
    options = {
        option for verb in verbs if verb for param in verb.params for option in (*param.opts, *param.secondary_opts)
    }
    assert {option for option in options if masked_argv([option, "x"])[1] != "x"} <= hints.OWN


@pytest.mark.parametrize("typed", ["--password 'a b'", "--api-key 'its me'", "--env 'TOKEN=a b'"])
def test_a_secret_with_a_blank_is_in_no_hint(typed: str) -> None:
    assert hints.proposed(f"did you mean: fleet launch train.py {typed}") is None


@pytest.mark.parametrize("typed", [[], ["-v"], ["-w", "gpu01"], ["-i", "fleet.yaml"], ["lab", "-v"]])
def test_a_line_without_its_verb_yet_is_read(typed: list[str]) -> None:
    with suppress(click.ClickException):
        assert parsed(["fleet", *typed], cli, resilient_parsing=True) or not typed


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
