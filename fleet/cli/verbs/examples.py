"""Runs `fleet examples [NAME...] [--to DIR]`: lists, prints or copies the examples that come with fleet."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from fleet import own
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import OF_HOSTS, without
from fleet.cli.line.shipped import find, shipped
from fleet.cli.screen.output import remark, write_pairs, write_report
from fleet.errors import EXIT_OK, UsageError
from fleet.model import Report


def about(path: Path) -> str:
    """Returns the first clause of an example's first line, or of the line after its "#!"."""
    first, *others = path.read_text("utf-8").split("\n")
    line = (others[0] if first.startswith("#!") else first).strip('#"{ ').removeprefix("TEMPLATE. ")
    return re.split(r"[.;:,]( |$)", line)[0]


def _is_or_may_be(path: Path, data: bytes) -> bool:
    try:
        return not os.path.lexists(path) or own.read_given(path) == data
    except OSError:
        return False


def copy(names: list[str], to: Path) -> None:
    """Copies files below `to`, under their full names. Raises UsageError, and copies nothing, if a file with other
    content is there."""
    files = {name: path.read_bytes() for name, path in shipped().items() if name in names}
    for name in names:
        if not _is_or_may_be(to / name, files[name]):
            raise UsageError(
                f"{to / name} is there already, and is another one",
                hint=f"'fleet examples {name}' shows the one of fleet; --to ANOTHER copies it elsewhere",
            )
    own.write_given(to, files)


@click.command("examples", cls=Verb, examples=("fleet examples --to rehearsal", "fleet examples two-nodes.yaml"))
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Copy them below DIR.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=completed("example"))
@without(*OF_HOSTS, "verbose")
def examples(names: tuple[str, ...], to: Path | None) -> int:
    """List what comes with fleet: inventories, playbooks, training scripts. With NAME: print that file.

    What is copied keeps its folder, and no other file of yours is written over.
    """
    settings, every = settings_of(), shipped()
    full = [(name, find(name)) for name in names]
    if unknown := next((name for name, found in full if found is None), None):
        raise UsageError(f"no '{unknown}' comes with fleet", hint="'fleet examples' lists what does")
    chosen = list(dict.fromkeys(found for _, found in full if found)) or list(every)
    if to is not None and not settings.dry_run:
        copy(chosen, to)

    def show(report: Report) -> None:
        if to is not None:
            remark(f"{'would copy' if settings.dry_run else 'copied'} to {to}: {', '.join(chosen)}")
        elif names:
            sys.stdout.writelines(every[name].read_text("utf-8") for name in chosen)
        else:
            write_pairs((name, about(every[name])) for name in chosen)

    files = {name: {"about": about(every[name]), "path": str(to / name if to else every[name])} for name in chosen}
    return write_report(Report("examples", (), EXIT_OK, {"files": files}), show, requested=True)
