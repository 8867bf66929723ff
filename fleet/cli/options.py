"""The common options: the same before and behind the verb, the one behind it wins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """What the common options said. Lives in the root context's `meta`, one a command line."""

    inventory: str | None = None
    hosts: str | None = None
    exclude: str | None = None
    transport: str = "ssh"
    fanout: int = 64
    connect_timeout: float = 10.0
    dry_run: bool = False
    json: bool = False
    verbose: int = 0
    quiet: bool = False


class Seconds(click.FloatRange):
    """A finite number of seconds: nan and inf are numbers to Python, and wait for ever or not at all."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


_KEY = "fleet.settings"


def settings_of(ctx: click.Context | None = None) -> Settings:
    """The settings of the command line being run."""
    ctx = ctx or click.get_current_context()
    settings = ctx.find_root().meta.setdefault(_KEY, Settings())
    assert isinstance(settings, Settings)
    return settings


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    assert param.name
    if ctx.get_parameter_source(param.name) not in (ParameterSource.DEFAULT, None):
        setattr(settings_of(ctx), param.name, value)


def _option(*names: str, **attrs: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_store, **attrs)


_OPTIONS = [
    _option("-i", "--inventory", metavar="FILE", help="Inventory file, or 'lab' for the lab's."),
    _option("-w", "--hosts", metavar="NODESET", help="Only these hosts: gpu[01-04], @group, gpu1:0,2."),
    _option("-x", "--exclude", metavar="NODESET", help="Not these hosts."),
    _option("--transport", type=click.Choice(["ssh", "local"]), default="ssh", show_default=True,
            help="How hosts are reached; 'local' runs everything on this machine."),
    _option("--fanout", type=click.IntRange(1, 4096), default=64, metavar="N", help="Hosts worked on at once [64]."),
    _option("--connect-timeout", type=Seconds(0.1, 3600), default=10.0, metavar="S",
            help="Seconds to reach and authenticate a host [10]."),
    _option("--dry-run", is_flag=True, help="Show the plan, do nothing."),
    _option("--json", "json", is_flag=True, help="One JSON document on stdout."),
    _option("-v", "--verbose", count=True, help="Say more."),
    _option("-q", "--quiet", is_flag=True, help="Say only what went wrong."),
]


def common_options(command: F) -> F:
    """Decorator: adds the common options to a click command. Read them with settings_of()."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
