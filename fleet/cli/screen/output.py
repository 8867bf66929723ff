"""Writes to the terminal: results to stdout, messages to stderr. No text from a node can control the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.line.hints import in_document, proposed
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.screen import terminal
from fleet.cli.screen.layout import table
from fleet.cli.screen.layout import wrap as wrapped
from fleet.errors import EXIT_OK
from fleet.model import Report, Result, Text, grouped
from fleet.rules.units import size_text

if TYPE_CHECKING:
    from fleet.events import Notice
    from fleet.ops.plans import Line, Plan

MANY = 20  # files of a plan that are listed without -v

# characters that control a terminal, begin another line, or change the direction of reading
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHOWN = {"\n": "\\n", "\r": "\\r", "\t": " "}
_COLOUR = re.compile("(\x1b\\[[0-9;:]*m)")


def _show(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SHOWN.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def clean(text: str) -> str:
    """Returns untrusted text as one line that is safe to print. Control characters are shown as \\n or \\xNN."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(_show, text)


def clean_lines(text: str) -> str:
    """Returns clean() text that keeps its lines."""
    return "\n".join(map(clean, text.split("\n")))


def clean_message(text: str) -> str:
    """Returns a message as one clean() line. Another program's output in it may have several lines."""
    return clean(re.sub(r"\s*\n\s*", " ", text.strip()))


def without_colours(text: str) -> str:
    """Returns clean() text without colours, so that it can be cut to a width."""
    return clean(_COLOUR.sub("", text))


def clean_output(text: str, colours: bool) -> str:
    """Returns the output of a rank or a command for a terminal. It keeps lines, tabs and colours; colours end with
    their line."""
    text = text if colours else _COLOUR.sub("", text)
    lines = []
    for line in text.split("\n"):
        parts = _COLOUR.split(line)
        tabs = ("\t".join(map(clean, part.split("\t"))) if i % 2 == 0 else part for i, part in enumerate(parts))
        lines.append("".join(tabs) + "\x1b[0m" * (len(parts) > 1))
    return "\n".join(lines)


def echo(text: str, *, err: bool = False, wrap: bool = True) -> None:
    """Writes a line of results to stdout, above the live lines. On a terminal a long line is broken at blanks, and its
    rest is indented."""
    out = sys.stderr if err else sys.stdout
    width = terminal.width(out) if wrap else None
    if width is not None:
        text = "\n".join(piece for line in text.split("\n") for piece in wrapped(line, width))
    with terminal.aside():
        click.echo(text, file=out, color=terminal.colored(out))


def inform(text: str, hint: str | None = None, *, wrap: bool = True, **may: bool) -> None:
    """Writes a message to stderr, and the hint below it. may: see proposed()."""
    echo(text, err=True, wrap=wrap)
    advise(hint, **may)


def advise(hint: str | None, **may: bool) -> None:
    """Writes a hint on stderr, if it can be proposed."""
    if found := proposed(hint, **may):
        echo(f"  hint: {clean(found)}", err=True)


def remark(text: str) -> None:
    """Writes a message to stderr, unless -q or --json is given."""
    if not settings_of().silent:
        inform(text)


def detail(text: str) -> None:
    """Writes a message to stderr with -v, unless --json is given."""
    if settings_of().verbose and not settings_of().json:
        inform(text)


def write_table(titles: Sequence[str], rows: Sequence[Sequence[str]], **form: Any) -> None:
    """Writes a table to stdout, at most as wide as the terminal. form: see layout.table()."""
    for line in table(titles, rows, terminal.width(sys.stdout), **form):
        echo(line, wrap=False)


def write_pairs(pairs: Iterable[tuple[str, str]], lead: str = "") -> None:
    """Writes names and their meanings to stdout, in two columns."""
    rows = list(pairs)
    width = max((len(name) for name, _ in rows), default=0)
    for name, meaning in rows:
        echo(f"{lead}{name:{width}}  {clean(meaning)}".rstrip())


_collected: list[list[Any]] = []  # innermost last


@contextmanager
def collecting() -> Iterator[list[Any]]:
    """Yields a list that gets the JSON documents written within the block, instead of stdout."""
    _collected.append([])
    try:
        yield _collected[-1]
    finally:
        _collected.pop()


def write_json(document: Mapping[str, Any]) -> None:
    """Writes one JSON document (or one JSON line) to stdout. Large texts in it are written in pieces."""
    if _collected:
        _collected[-1].append(in_document(document))
        return
    large: list[Text] = []
    mark = os.urandom(16).hex()

    def other(value: object) -> str:
        if not isinstance(value, Text):
            return str(value)
        large.append(value)
        return mark

    first, *rest = json.dumps(in_document(document), ensure_ascii=True, default=other).split(mark)
    with terminal.aside():
        sys.stdout.write(first)
        for text, after in zip(large, rest, strict=True):
            for piece in text:
                sys.stdout.write(json.dumps(piece)[1:-1])
            sys.stdout.write(after)
        sys.stdout.write("\n")
        sys.stdout.flush()


def write_notice(notice: Notice) -> None:
    """Writes a JSON line for each record of the notice. A notice without records is written itself."""
    plain = {
        "event": "notice",
        "time": notice.time,
        "host": notice.host,
        "level": notice.level,
        "message": notice.message,
        "hint": notice.hint,
    }
    for record in notice.records or [{}]:
        write_json(record or plain)


def fold(names: Iterable[str]) -> str:
    """Returns host names folded to a node set, "gpu[01-04]"."""
    from fleet.inventory.nodeset import fold as folded  # ClusterShell is slow to load

    return folded(names)


def groups_by(results: Iterable[Result], key: Any) -> dict[Any, list[str]]:
    """Returns {key(result): [host names]}, in order of first appearance."""
    return grouped((key(result), result.host) for result in results)


def write_grouped(results: Iterable[Result], line: Callable[[Result], str]) -> None:
    """Writes one line for all hosts with the same text."""
    for text, names in groups_by(results, line).items():
        echo(f"{click.style(fold(names), bold=True)}: {clean(text)}")


def _ended(result: Result) -> str:
    """Returns "FILE:LINE: COMMAND: " for the command of a task that ended; "" for other results."""
    from fleet.answers.hosts import TaskEnded

    ended = result.read(TaskEnded)
    return "".join(f"{each}: " for each in (ended.where, ended.command) if each is not None)


def write_failures(report: Report) -> None:
    """Writes the hosts that failed, with the reason and the hint. Hosts with the same cause are listed together, but
    not with -v."""
    from fleet.rules.causes import Cause, by_cause

    # the hosts that failed come first; then those that fleet held back because of them
    results = sorted(report.results, key=lambda r: r.error is not None and r.error.kind in ("held", "not-sent"))
    failed = [
        (r.host, r.error.reason, r.error.hint)
        if r.error is not None
        else (r.host, f"{_ended(r)}exit status {r.exit_status}", None)
        for r in results
        if not r.ok
    ]
    verbose = settings_of().verbose > 0
    each = [Cause([host], message, hint) for host, message, hint in failed]
    for cause in each if verbose else by_cause(failed):
        inform(
            f"{click.style('error:', fg='red')} host {fold(cause.whose)}: {clean_message(cause.message)}", cause.hint
        )


def write_report(report: Report, show: Callable[[Report], None] | None = None, *, requested: bool = False) -> int:
    """Prints a report as JSON or as text. Returns its exit code, which the verb's command returns in turn. With -q it
    prints only failures, unless the user requested the report."""
    if settings_of().json:
        write_json(report.as_json())
    else:
        if show is not None and (requested or not settings_of().quiet):
            show(report)
        write_failures(report)
    return report.exit_code


# -- plans
def write_plan(plan: Plan, **more: Any) -> int:
    """Prints the plan of the running verb, for --dry-run. Returns the exit code."""
    return write_planned(the_line().verb, [host.name for host in plan.hosts], plan.describe(), plan.lines, **more)


def write_planned(verb: str, names: Iterable[str], plan: Any, lines: Callable[[], Iterable[Line]], **more: Any) -> int:
    """Prints a plan that did nothing yet on the hosts `names`. With --json it prints the verb's document, which has the
    plan in it. Otherwise it prints the plan's lines; equal lines of several hosts are printed once."""
    if settings_of().json:
        deque(lines(), maxlen=0)  # reads the plan's files, so that an error in them shows with --json, too
        report = Report(verb, tuple(Result(name, ok=True) for name in names), EXIT_OK)
        write_json({**report.as_json(), "dry_run": True, **more, "plan": plan})
    else:
        for line in lines():
            for text in _texts(line):
                echo(clean(text))
    return EXIT_OK


def _texts(line: Line) -> Iterator[str]:
    from fleet.ops.plans import Files, PerHost

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
