"""Whether fleet takes a command line, without running it."""

from __future__ import annotations

import shlex

import click

from fleet.cli.line.command import rest_of
from fleet.cli.main import cli


def accept(line: str) -> click.Context:
    """The context of the verb; click.UsageError or FleetError unless fleet takes the line."""
    words = shlex.split(line)
    if ">" in words:
        words = words[: words.index(">")]
    ctx = cli.make_context("fleet", words[1:])
    while isinstance(ctx.command, click.Group):
        name, command, rest = ctx.command.resolve_command(ctx, rest_of(ctx))
        assert command is not None
        ctx = command.make_context(name, rest, parent=ctx)
    return ctx
