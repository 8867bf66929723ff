"""Verbs as CONTRIBUTING.md has them: one that does what hosts do already, one with work of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from fleet.cli.context import perform
from fleet.cli.line.command import Verb
from fleet.cli.line.options import common_options
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
