"""`fleet launch --from RUN`, `fleet launch --again RUN`: an earlier run's command once more."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from fleet.api import Verbs
from fleet.cli.command import completed
from fleet.cli.context import use_inventory
from fleet.cli.options import Settings, settings_of
from fleet.errors import InventoryError, UsageError

if TYPE_CHECKING:
    from fleet.ops.runs.again import Recorded

F = TypeVar("F", bound=Callable[..., Any])
# options of the command line that are called otherwise in fleet.api
ELSEWHERE = {"no_preflight": "preflight", "env_file": "env"}


def again_options(command: F) -> F:
    """Decorator: adds both."""
    for option, name, said in (
        ("--again", "again", "Launch what RUN was once more, on what the inventory says now."),
        ("--from", "from_", "Launch what RUN was once more, on the hosts as they were described then."),
    ):
        command = click.option(option, name, metavar="RUN", shell_complete=completed("run_here"), help=said)(command)
    return command


def script_or_run(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The callback of SCRIPT, which an earlier run may tell."""
    runs = (ctx.params.get("again"), ctx.params.get("from_"))
    if value is None and runs == (None, None) and not ctx.resilient_parsing:
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


def earlier(again: str | None, from_: str | None, given: Mapping[str, Any]) -> Recorded | None:
    """The run that is to be repeated, if there is one; from here on its hosts are those of this command line, unless -i
    or -w says otherwise. UsageError."""
    word = from_ if again is None else again
    if word is None:
        return None
    if None not in (again, from_):
        raise UsageError("--again and --from exclude each other", hint="--from takes the hosts as they were described")
    from fleet.ops.runs.again import recorded

    run, settings = recorded(word, given["runs_dir"]), settings_of()
    if settings.transport == Settings.transport:
        settings.transport = run.transport
    if settings.inventory is None and from_:
        from fleet.ops.launch import read_env

        use_inventory(run.everyone(read_env(given["env_file"], given["env"], (), os.environ)[0]))
        settings.hosts = settings.hosts or run.selected
    elif settings.inventory is None and run.source and "FLEET_INVENTORY" not in os.environ:
        if not os.path.exists(run.source):
            raise InventoryError(
                f"run {run.run}: the inventory that it was started with, {run.source}, is not there any more",
                hint=f"fleet launch --from {run.run} takes the hosts as they were then; or name a file with -i",
            )
        settings.inventory = run.source
    settings.hosts = settings.hosts or run.narrowed
    return run


def changed(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options as fleet.api's launch() takes them those that were given on this command line."""
    ctx = click.get_current_context()
    typed = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    typed |= {ELSEWHERE[name] for name in typed & ELSEWHERE.keys()}
    known = inspect.signature(Verbs.launch).parameters
    return {
        name: value
        for name, value in told.items()
        if name in typed or name not in known or value != known[name].default
    }
