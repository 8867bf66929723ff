"""Prints the plan of --dry-run: as JSON, or as text on stdout. Hosts with the same text are shown together, long lists
are cut without -v."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from fleet.cli.line.options import settings_of
from fleet.cli.screen.output import clean, echo, fold, write_json
from fleet.errors import EXIT_OK
from fleet.model import Report, Result, grouped
from fleet.ops.plans import Files, Line, PerHost, Plan
from fleet.rules.units import size_text

MANY = 20


def tell(plan: Plan, **more: Any) -> int:
    """A plan of the verb that runs; --dry-run's exit code."""
    verb = str(click.get_current_context().command.name)
    return write(verb, [host.name for host in plan.hosts], plan.describe(), plan.lines, **more)


def write(verb: str, names: Iterable[str], plan: Any, lines: Callable[[], Iterable[Line]], **more: Any) -> int:
    """With --json the document of a verb that did nothing yet on the hosts `names`, and its plan; else the lines."""
    if settings_of().json:
        deque(lines(), maxlen=0)  # what it cannot read here is refused in both forms
        report = Report(verb, tuple(Result(name, ok=True) for name in names), EXIT_OK)
        write_json({**report.as_json(), "dry_run": True, **more, "plan": plan})
    else:
        for line in lines():
            for text in _texts(line):
                echo(clean(text))
    return 0


def _texts(line: Line) -> Iterator[str]:
    if isinstance(line, PerHost):
        brief = None if settings_of().verbose else line.brief
        groups = grouped((tuple(lines), name) for name, lines in (brief or line.said).items())
        for (first, *others), names in groups.items():
            yield f"{fold(names)}: {first}"
            yield from (f"  {other}" for other in others)
    elif isinstance(line, Files):
        count = len(line.sizes)
        shown = count if settings_of().verbose or count <= MANY + 1 else MANY
        yield from (f"  {size_text(size):>10}  {path}" for path, size in line.sizes[:shown])
        if shown < count:
            yield f"  and {count - shown} more; -v shows all"
    else:
        yield line
