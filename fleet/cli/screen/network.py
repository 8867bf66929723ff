"""Shows what `fleet check` found between hosts: on the terminal, and as a page for a browser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.screen.layout import beside
from fleet.cli.screen.output import clean, clean_lines
from fleet.cli.screen.terminal import cells
from fleet.rules.judge import told
from fleet.rules.links import slow_pairs
from fleet.rules.matrix import matrix
from fleet.rules.pairs import WORDS, Pair

if TYPE_CHECKING:
    from fleet.ops.check import Checked
    from fleet.rules.rule import View

MOST_LINKS = 12  # as a table has them side by side
PAGE_COLUMNS = 8  # of facts
COLORS = {"open": "green", "unknown": ""}  # of a pair; all else is a fault
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>fleet check</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem; color: #1c2024 }}
.wide {{ overflow-x: auto }} table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .6rem; border: 1px solid #d5d9de; white-space: pre }}
td {{ font-variant-numeric: tabular-nums }} pre {{ overflow-x: auto; background: #f4f5f7; padding: .6rem }}
li {{ margin: .5rem 0; overflow-wrap: anywhere }} .green {{ background: #d9f2df }}
.yellow, .warning {{ background: #fff0c2 }} .red, .error {{ background: #ffd6d3 }} .info {{ background: #dcecff }}
b {{ padding: 0 .3rem }}
</style></head><body><h1>fleet check</h1>
{body}
</body></html>
"""


def cells_of(views: Mapping[str, View]) -> dict[Pair, tuple[str, str]]:
    """Returns what is known of each link, sender and receiver, and its colour. A plus: the sender's processor was the
    limit."""
    found = dict[Pair, tuple[str, str]]()
    for a, view in views.items():
        for b, how in (view.get("pairs") or {}).items():
            found[a, b] = WORDS.get(how, how), COLORS.get(how, "red")
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
    """Returns what `--network` measured, for the terminal: of many hosts the slowest links alone."""
    names, measured, known = [*checked.views], links_of(checked.views), cells_of(checked.views)
    if not measured:
        return []
    if len(names) > MOST_LINKS:
        slowest = sorted(measured, key=lambda pair: measured[pair]["mbit"])[:MOST_LINKS]
        lines = [f"  {clean(a)} -> {clean(b)}  {known[a, b][0]}" for a, b in slowest]
        return ["slowest links, Mbit/s and ms:", *lines, *together(checked), ""]
    rows = [["Mbit/s, ms", *map(clean, names)]]
    rows += [[clean(a), *(_colored(*known.get((a, b), ("-", ""))) for b in names)] for a in names]
    sizes = [max(cells(row[n]) for row in rows) for n in range(len(names) + 1)]
    return [*(line for row in rows for line in beside([[cell] for cell in row], sizes)), *together(checked), ""]


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


def page(checked: Checked, summary: str, diff: Sequence[str]) -> str:
    """Returns a page that needs nothing else, and runs nothing. diff: to the inventory."""
    names, known = [*checked.views], cells_of(checked.views)
    found = [(severity, cause.message, cause.hint or "") for severity, cause in told(checked.findings)]
    items = [f'<li><b class="{s}">{s}</b> {_text(message)}<br>{_text(hint)}</li>' for s, message, hint in found]
    silent = [f"<li><b class=error>not compared</b> {_text(r.host)}</li>" for r in checked.results if not r.ok]
    body = [f"<p>{_text(summary)}</p><ul>", *silent, *items, "</ul>"]
    if known:
        title = (
            "Mbit/s and ms, from and to (+: at least, its processors had no time)"
            if links_of(checked.views)
            else "Who reaches whom, from and to"
        )
        rows = [[(a, ""), *(known.get((a, b), ("-", "")) for b in names)] for a in names]
        body += [
            f"<h2>{title}</h2>",
            *_table(["", *names], rows),
            *(f"<p>{_text(line)}</p>" for line in together(checked)),
        ]
    if diff:
        body += ["<h2>Proposed for the inventory</h2><pre>", _text("\n".join(diff)), "</pre>"]
    if checked.views:
        facts = matrix(checked.views, PAGE_COLUMNS)
        rows = [[(name, ""), *((it.text, "yellow" * it.deviates) for it in row)] for name, row in facts.rows]
        body += ["<h2>Facts</h2>", *_table(["", *facts.titles], rows)]
    return PAGE.format(body="\n".join(body))


def _table(titles: Iterable[str], rows: Iterable[Sequence[tuple[str, str]]]) -> Iterable[str]:
    """rows: of each cell its text and its class."""
    yield '<div class="wide"><table><tr>' + "".join(f"<th>{_text(title)}</th>" for title in titles)
    for row in rows:
        yield "<tr>" + "".join(f'<td class="{kind}">{_text(text)}</td>' for text, kind in row)
    yield "</table></div>"


def _text(text: str) -> str:
    return escape(clean_lines(text))
