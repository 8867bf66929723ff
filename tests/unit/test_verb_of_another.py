"""Verbs as CONTRIBUTING.md has them: one that does what hosts do already, one with work of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from fleet.cli.context import perform
from fleet.cli.line import verbs
from fleet.cli.line.command import Verb
from fleet.cli.line.options import common_options
from fleet.cli.main import run
from fleet.cli.screen.output import echo, fold, write_grouped
from fleet.each import on_each
from fleet.model import Host, Report, Result, exit_code_of
from fleet.ops.plans import Line, OnHosts
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.shell import run_script


@click.command("ping", cls=Verb, examples=("fleet ping", "fleet -w 'gpu[01-04]' ping"))
@common_options
def ping() -> int:
    """Ask every host for a sign of life."""
    return perform(
        lambda fleet: fleet.plan.exec(["true"]), lambda report: echo(f"{fold(r.host for r in report.results)}: there")
    )


@dataclass(frozen=True)
class KernelPlan(OnHosts):
    def describe(self) -> dict[str, Any]:
        return {"asks": "uname -s"}

    def lines(self) -> Iterator[Line]:
        yield f"would ask {fold(host.name for host in self.hosts)} for the kernel"


def run_kernel(plan: KernelPlan, runtime: Runtime) -> Report:
    def task(session: Session, host: Host) -> Result:
        said = run_script(session, b"uname -s", timeout=60.0, cancel=runtime.cancel)
        return Result(host.name, said.status == 0, said.status, data={"kernel": said.stdout.decode().strip()})

    results = on_each(plan.hosts, runtime, task, what="asking")
    return Report("kernel", results, exit_code_of(results))


@click.command("kernel", cls=Verb, examples=("fleet kernel", "fleet -w 'gpu[01-04]' kernel"))
@common_options
def kernel() -> int:
    """Show what kernel each host runs."""
    return perform(
        lambda fleet: fleet.plan.do(KernelPlan(fleet.inventory), run_kernel),
        lambda report: write_grouped(report.results, lambda result: str(result.data["kernel"])),
    )


def shown(
    words: list[str], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setitem(verbs.VERBS, name, verbs.Verb(f"{__name__}:{name}", "For this test."))
    (folder / "hosts").write_text("here slots=1\n")
    assert run(["-i", str(folder / "hosts"), "--transport", "local", name, *words]) == 0, capsys.readouterr()
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
