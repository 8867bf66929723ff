"""Runs `fleet build deepspeed` and `fleet build PATH`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fleet.answers.sync import Built
from fleet.cli.context import perform
from fleet.cli.files.data import show_wheels
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import pairs, request_options, without
from fleet.cli.screen.lines import Lines
from fleet.cli.screen.output import clean, echo, inform
from fleet.cli.screen.progress import ProgressLine
from fleet.events import Event, Output
from fleet.model import Report
from fleet.requests.hosts import Build


class BuildOutput(ProgressLine):
    """Prints notices, and the build's log line by line as it arrives."""

    def __init__(self) -> None:
        super().__init__("sending")
        self._lines = Lines()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Output):
            for line in self._lines.feed(event.data) if not self._quiet else ():
                text = clean(line.decode("utf-8", "replace"))
                inform(f"{click.style(event.host + ':', dim=True)} {text}", wrap=False)
        else:
            super().__call__(event)


@click.command(
    "build", cls=Verb, examples=("fleet build deepspeed --ops cpu_adam", "fleet build ./my-extension --on gpu02")
)
@click.argument("what", metavar="deepspeed|PATH", shell_complete=completed("buildable"))
@request_options(
    Build,
    *("version", "source", "arch", "ops", "cpu", "on", "env", "install", "builds_dir", "import_timeout"),
    source={"type": click.Path(path_type=Path)},
    ops={"multiple": False, "default": ""},
)
@without(own=("on",))
def build(what: str, ops: str, env: tuple[str, ...], **given: Any) -> int:
    """Build a wheel on one host, for the GPUs of all of them, and install it everywhere.

    The compilers are checked first. For a folder called deepspeed write ./deepspeed.
    """
    return perform(
        lambda fleet: fleet.plan.build(
            what, ops=[op.strip() for op in ops.split(",") if op.strip()], env=pairs("--env", env), **given
        ),
        show,
        requested=True,
        line=BuildOutput(),
    )


def show(report: Report) -> None:
    """Prints where the wheel is, and then which hosts have it. With -q it prints nothing if all went well."""
    if report.ok and settings_of().quiet:
        return
    built = report.read(Built)
    if built.wheel is not None:
        arch = f" for {';'.join(built.arch)}" if built.arch else ""
        echo(f"{built.wheel}: built on {built.on}{arch}")
    elif built.log is not None:
        inform(f"the log: {built.log}")
    if built.wheels is not None:
        show_wheels(report)
