"""Shows what `fleet check` found between hosts: on the terminal, and as a page for a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.screen.layout import table
from fleet.cli.screen.output import clean
from fleet.cli.screen.pages import page
from fleet.rules.bench import measured_in, rated
from fleet.rules.judge import by_cause_and_severity
from fleet.rules.links import slow_pairs
from fleet.rules.matrix import matrix
from fleet.rules.pairs import FAILURES, Pair

if TYPE_CHECKING:
    from fleet.ops.check import Checked
    from fleet.rules.rule import View

MOST_LINKS = 12  # hosts that fit side by side into a table; also the most lines of a list
PAGE_COLUMNS = 8  # of the table of facts
COLORS = {"open": "green", "unknown": ""}  # state of a pair -> colour; all other states are faults


def cells_of(views: Mapping[str, View]) -> dict[Pair, tuple[str, str]]:
    """Returns (text, colour) for each (sender, receiver). A "+" marks a link (`least`) that may be faster: the sender's
    processor was the limit."""
    found = dict[Pair, tuple[str, str]]()
    for a, view in views.items():
        for b, how in (view.get("pairs") or {}).items():
            found[a, b] = FAILURES.get(how, how), COLORS.get(how, "red")
    measured = links_of(views)
    slow = slow_pairs({pair: link["mbit"] for pair, link in measured.items() if not link["least"]})
    for pair, link in measured.items():
        text = f"{link['mbit']:.0f}{'+' * link['least']} {link['rtt_ms']:.2f}"
        color = "yellow" if pair in slow else "green"
        found[pair] = text, "" if link["least"] else color
    return found


def links_of(views: Mapping[str, View]) -> dict[Pair, Any]:
    return {(a, b): link for a, view in views.items() for b, link in (view.get("links") or {}).items()}


def lines_of(checked: Checked) -> list[str]:
    """Returns what `--network` measured, for the terminal. For more than MOST_LINKS hosts it returns only the slowest
    links."""
    names, measured, known = [*checked.views], links_of(checked.views), cells_of(checked.views)
    if not measured:
        return []
    if len(names) > MOST_LINKS:
        slowest = sorted(measured, key=lambda pair: measured[pair]["mbit"])[:MOST_LINKS]
        lines = [f"  {clean(a)} -> {clean(b)}  {known[a, b][0]}" for a, b in slowest]
        return ["slowest links, Mbit/s and ms:", *lines, *together(checked), ""]
    rows = [[clean(a), *(_colored(*known.get((a, b), ("-", ""))) for b in names)] for a in names]
    return [*table(["Mbit/s, ms", *map(clean, names)], rows), *together(checked), ""]


def speeds_of(views: Mapping[str, View]) -> list[str]:
    """Returns what `--bench` measured, for the terminal. For more than MOST_LINKS parts (GPUs, processors) it returns
    only the slowest."""
    found = [(each["tflops"], each["gbytes"], part) for part, each in measured_in(views).items()]
    lines = [f"  {clean(part.title)}  {rated(tflops)} TFLOP/s  {rated(gbytes)} GB/s" for tflops, gbytes, part in found]
    if len(found) > MOST_LINKS:
        slowest = sorted(range(len(found)), key=lambda n: found[n][0])[:MOST_LINKS]
        return ["the slowest by their matrix product:", *(lines[n] for n in sorted(slowest)), ""]
    return ["a matrix product and a copy of memory:", *lines, ""] if lines else []


def _colored(text: str, color: str) -> str:
    return click.style(text, fg=color) if color else text


def together(checked: Checked) -> list[str]:
    """Returns a line for each measurement that another program made."""
    found, lines = checked.measured.all_reduce, list[str]()
    if found:
        what = f"all-reduce over {len(found['hosts'])} hosts ({found['backend']})"
        allowed = f"; its links allow {found['links_mbit']:.0f}" if found["links_mbit"] else ""
        lines.append(f"{what}: {found['bus_mbit']:.0f} Mbit/s of bus bandwidth{allowed}")
    for each in checked.measured.ib_write_bw:
        lines.append(f"ib_write_bw {clean(' -> '.join(each['hosts']))}: {each['gbit']:.1f} Gbit/s")
    return lines


def check_page(checked: Checked, summary: str, diff: Sequence[str]) -> str:
    """Returns the HTML page of a check. diff: the lines by which the inventory differs from what was found."""
    names, known = [*checked.views], cells_of(checked.views)
    facts = matrix(checked.views, PAGE_COLUMNS) if checked.views else None
    return page(
        "check.html",
        title="fleet check",
        summary=summary,
        silent=[result.host for result in checked.results if not result.ok],
        found=by_cause_and_severity(checked.findings),
        silenced=by_cause_and_severity(checked.silenced),
        names=names,
        pairs=[(a, [known.get((a, b), ("-", "")) for b in names]) for a in names if known],
        measured=links_of(checked.views),
        together=together(checked) if known else (),
        speeds=[line for line in speeds_of(checked.views) if line],
        diff=diff,
        facts=facts,
        rows=[(name, [(it.text, "yellow" * it.deviates) for it in row]) for name, row in facts.rows] if facts else (),
    )
