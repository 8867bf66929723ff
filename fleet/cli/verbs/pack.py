"""Runs `fleet pack` and `fleet explain-env`, for containers that a platform starts."""

from __future__ import annotations

from pathlib import Path

import click

from fleet.cli.line.command import F, Verb
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import OF_HOSTS, without
from fleet.cli.screen.output import clean, echo, write_report
from fleet.errors import EXIT_OK, UsageError
from fleet.model import Report
from fleet.node.base.errors import on_os_error
from fleet.node.container.options import OF_PLACE, ROWS, field


@click.command("pack", cls=Verb, examples=("fleet pack", "fleet pack train.pyz"))
@click.argument("file", type=click.Path(path_type=Path), default=Path("fleet.pyz"))
@without(*OF_HOSTS)
def pack(file: Path) -> int:
    """Write FILE [fleet.pyz], with which a platform's containers start a run: 'python3 fleet.pyz train.py' in each. It
    needs a python3 from 3.6 on, and nothing installed; the training interpreter is --python's.
    """
    from fleet.ops import pack as packing

    settings = settings_of()
    if not settings.dry_run:
        with on_os_error(UsageError, str(file)):
            packing.pack(file)
    text = f"{'would write ' * settings.dry_run}{file}; in each container: python3 {file.name} train.py"
    return write_report(Report("pack", (), EXIT_OK, {"file": str(file)}), lambda _: echo(clean(text)))


def of_place(command: F) -> F:
    """Decorator: adds the options that name this container's place."""
    for name in reversed(OF_PLACE):
        metavar, _, _, text = ROWS[name]
        command = click.option(f"--{name}", field(name), metavar=metavar, help=f"{text[0].upper()}{text[1:]}.")(command)
    return command


@click.command("explain-env", cls=Verb, examples=("fleet explain-env", "fleet explain-env --platform kubeflow"))
@of_place
@without(*OF_HOSTS, "dry_run")
def explain_env(platform: str | None, **requested: str | None) -> int:
    """Show what a platform's variables mean here and what is wrong with them. Also show the lines for torchrun,
    accelerate and deepspeed that start the same by hand. Exit: 2 where something is wrong.
    """
    from fleet.node.container.explain import SCRIPT, show

    given = {name: value for name, value in requested.items() if value is not None}
    return show(given, platform, settings_of().json, SCRIPT)
