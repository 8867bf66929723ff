"""Writes to the terminal: results to stdout, messages to stderr. Nothing from a node can drive the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from fleet.cli.line.hints import in_document, proposed
from fleet.cli.line.options import settings_of
from fleet.cli.screen import terminal
from fleet.cli.screen.layout import table
from fleet.cli.screen.layout import wrap as wrapped
from fleet.model import Report, Result, Text, grouped
from fleet.spool import Spooled, pieces

if TYPE_CHECKING:
    from fleet.answers.sync import Broadcasted, Mirrored, Received, Synced
    from fleet.cli.screen.differ import Hunk
    from fleet.events import Notice

# what drives a terminal, begins another line, or turns the direction of reading
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHOWN = {"\n": "\\n", "\r": "\\r", "\t": " "}
LINE_LIMIT = 1 << 20  # a longer one is shown in pieces
_COLOUR = re.compile("(\x1b\\[[0-9;:]*m)")


def _show(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SHOWN.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def clean(text: str) -> str:
    """Text from elsewhere made safe to print, as one line: what is no plain character is shown, as \\n or \\xNN."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(_show, text)


def clean_lines(text: str) -> str:
    """The same for text that may have several lines."""
    return "\n".join(map(clean, text.split("\n")))


def clean_message(text: str) -> str:
    """The same for a message, of which another program's words may have several lines: as one."""
    return clean(re.sub(r"\s*\n\s*", " ", text.strip()))


def without_colours(text: str) -> str:
    """For a line that is cut to its width."""
    return clean(_COLOUR.sub("", text))


def clean_output(text: str, colours: bool) -> str:
    """Returns the output of a rank or a command for a terminal: lines and tabs stay, and colours, which end with their
    line."""
    text = text if colours else _COLOUR.sub("", text)
    lines = []
    for line in text.split("\n"):
        parts = _COLOUR.split(line)
        tabs = ("\t".join(map(clean, part.split("\t"))) if i % 2 == 0 else part for i, part in enumerate(parts))
        lines.append("".join(tabs) + "\x1b[0m" * (len(parts) > 1))
    return "\n".join(lines)


def hint_line(hint: str | None, **may: bool) -> str:
    """Returns the line below an error; "" where nothing can be proposed. may: as for proposed()."""
    found = proposed(hint, **may)
    return f"  hint: {clean(found)}" if found else ""


def echo(text: str, *, err: bool = False, wrap: bool = True) -> None:
    """A line of results on stdout, above the live lines; on a terminal broken at blanks, with an indent."""
    out = sys.stderr if err else sys.stdout
    width = terminal.width(out) if wrap else None
    if width is not None:
        text = "\n".join(piece for line in text.split("\n") for piece in wrapped(line, width))
    with terminal.aside():
        click.echo(text, file=out, color=terminal.colored(out))


def talk(text: str, hint: str | None = None, *, wrap: bool = True, **may: bool) -> None:
    """Writes a remark on stderr, if there is one, and the hint below it. may: as for proposed()."""
    if text:
        echo(text, err=True, wrap=wrap)
    if line := hint_line(hint, **may):
        echo(line, err=True)


def write_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    keys: int = 1,
    right: Collection[str] = (),
    once: str = "",
    shorten: bool = False,
) -> None:
    """A table on stdout, as wide as that is; see layout.table."""
    width = terminal.width(sys.stdout)
    for line in table(titles, rows, width, keys=keys, right=right, once=once, shorten=shorten):
        echo(line, wrap=False)


_collected: list[list[Any]] = []  # innermost last


@contextmanager
def collecting() -> Iterator[list[Any]]:
    """The JSON documents that would be written to stdout meanwhile."""
    _collected.append([])
    try:
        yield _collected[-1]
    finally:
        _collected.pop()


def write_json(document: Mapping[str, Any]) -> None:
    """One JSON document (or one JSON line) on stdout. What is large in it is written piece by piece."""
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
    if not rest:
        echo(first, wrap=False)
        return
    with terminal.aside():
        sys.stdout.write(first)
        for text, after in zip(large, rest, strict=True):
            for piece in text:
                sys.stdout.write(json.dumps(piece)[1:-1])
            sys.stdout.write(after)
        sys.stdout.write("\n")
        sys.stdout.flush()


def write_notice(notice: Notice) -> None:
    """A JSON line for each of its records, or one of its own where it has none."""
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
    """Host names folded to a node set, "gpu[01-04]"."""
    from fleet.inventory.nodeset import fold as folded  # ClusterShell takes its time to load

    return folded(names)


def groups_by(results: Iterable[Result], key: Any) -> dict[Any, list[str]]:
    """{key(result): [host names]}, in order of first appearance."""
    return grouped((key(result), result.host) for result in results)


def write_grouped(results: Iterable[Result], line: Callable[[Result], str]) -> None:
    """One line for all hosts for which it is the same."""
    for text, names in groups_by(results, line).items():
        echo(f"{click.style(fold(names), bold=True)}: {clean(text)}")


def warn_of_own(answers: Iterable[tuple[str, Synced | Received]]) -> None:
    """Prints which of the nodes' own files stayed, and where those that were replaced are kept."""
    answers = list(answers)
    for left, names in grouped((tuple(one.left or ()), host) for host, one in answers).items():
        if left:
            what = ", ".join(clean(path) for path in left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
            talk(f"warning: host {fold(names)}: left as the node has it, not as the source: {what}")
    for aside, names in grouped((tuple(one.aside or ()), host) for host, one in answers).items():
        if aside:
            talk(f"host {fold(names)}: what was replaced is kept for 30 days in {clean(', '.join(aside))}")


def warn_of_source(whole: Mirrored | Broadcasted) -> None:
    """Prints what of a source does not arrive unchanged."""
    for path in whole.skipped:
        talk(f"warning: left out {clean(path)}: neither file, folder nor link")
    if whole.hard_links:
        talk(f"warning: {whole.hard_links} files are hard links of each other: they arrive as separate files")


def header(names: Sequence[str], more: str = "") -> str:
    count = f" ({len(names)})" if len(names) > 1 else ""
    return click.style(f"--- {fold(names)}{count}{more} ---", bold=True)


def write_folded(results: Iterable[Result], stream: str) -> None:
    """Print stdout (or stderr) of all hosts, identical outputs once under their node set; of those that differ in a few
    lines from what most have, these lines."""
    out = sys.stdout if stream == "stdout" else sys.stderr
    by_output = {data: names for data, names in groups_by(results, lambda r: getattr(r, stream)).items() if data}
    groups = list(by_output.items())
    most = max(range(len(groups)), key=lambda i: len(groups[i][1]), default=0)
    groups = [*groups[most : most + 1], *groups[:most], *groups[most + 1 :]]
    # what is not in memory is not compared, as what is no text
    small = [data if isinstance(data, bytes) else b"\0" for data, _ in groups]
    near: list[int] = []
    hunks: list[Hunk] = []
    if len(groups) > 1:
        from fleet.cli.screen.differ import compare

        near, hunks = compare(small)
    blocks: list[tuple[str, bytes | Spooled]] = [
        (header(names), data) for i, (data, names) in enumerate(groups) if i not in near
    ]
    if near:
        who = {i: groups[i][1] for i in (0, *near)}
        others = [name for i in near for name in who[i]]
        title = header(others, f", where {'they differ' if len(others) > 1 else 'it differs'} from {fold(who[0])}")
        blocks.insert(1, (title, differences(hunks, who)))
    for title, data in blocks:
        with terminal.aside():
            echo(title, err=out is sys.stderr)
            last = b""
            for last in filter(None, shown(data, out)):
                out.buffer.write(last)
            out.buffer.write(b"" if last.endswith(b"\n") else b"\n")
            out.buffer.flush()


def shown(data: bytes | Spooled, out: TextIO) -> Iterator[bytes]:
    """The pieces of what hosts wrote, as they are; whole lines, and cleaned, where `out` is a terminal."""
    if not terminal.interactive(out):
        yield from pieces(data)
        return
    rest, colours = b"", terminal.colored(out)
    for piece in pieces(data):
        lines, end, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > LINE_LIMIT:
            lines, end, rest = lines + end + rest, b"", b""
        yield clean_output((lines + end).decode("utf-8", "replace"), colours).encode()
    yield clean_output(rest.decode("utf-8", "replace"), colours).encode()


def differences(hunks: Iterable[Hunk], who: Mapping[int, Sequence[str]]) -> bytes:
    """Each place that is not the same everywhere, and what the hosts have there."""
    lines: list[bytes] = []
    for hunk in hunks:
        by_text = grouped((text, name) for number, text in hunk.said.items() for name in who[number])
        named = {text: fold(names) for text, names in by_text.items()}
        size = min(24, max(map(terminal.cells, named.values())) + 1)
        lines.append(f"{hunk.where}:".encode())
        for text, names in named.items():
            lines += [f"  {terminal.pad(f'{names}:', size)} ".encode() + line for line in text]
            lines += [] if text else [f"  {names} {'have' if len(by_text[text]) > 1 else 'has'} nothing there".encode()]
    return b"\n".join(lines)


def _ended(result: Result) -> str:
    """Returns which of a task's commands it was, and its place in the file."""
    from fleet.answers.hosts import TaskEnded

    ended = result.read(TaskEnded)
    return "".join(f"{each}: " for each in (ended.where, ended.command) if each is not None)


def write_failures(report: Report) -> None:
    """Every host that did not do well, with the reason and the hint; those of one cause are listed together, unless
    -v requests each."""
    from fleet.rules.causes import Cause, by_cause

    # those that only wait come after what keeps them from going on
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
        talk(f"{click.style('error:', fg='red')} host {fold(cause.whose)}: {clean_message(cause.message)}", cause.hint)
