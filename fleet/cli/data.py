"""`fleet sync --data PATH[:DEST]`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from fleet.cli.context import Part, runtime
from fleet.cli.options import settings_of
from fleet.cli.output import clean, fold, groups_by, size_text, talk
from fleet.cli.progress import ProgressLine
from fleet.events import Event, Notice
from fleet.model import Inventory, Report, Result


class DataLine(ProgressLine):
    """How far the nodes are: percent of all bytes, a node's mean rate, who is behind, and the time it will take."""

    def words(self, seconds: float) -> list[str]:
        receiving = {name: total for name, total in self._total.items() if total}
        if not receiving:
            return []
        shares = {name: min(1.0, self._done[name] / total) for name, total in receiving.items()}
        share = sum(shares.values()) / len(shares)
        rate = sum(self._done[name] for name in receiving) / len(receiving) / max(seconds, 0.001)
        last = min(shares, key=lambda name: shares[name])
        parts = [f"{100 * share:.0f}% of {size_text(max(receiving.values()))} each", f"{size_text(rate)}/s"]
        if shares[last] < share - 0.05:
            parts.append(f"behind: {clean(last)} {100 * shares[last]:.0f}%")
        if 0 < shares[last] < 1:
            parts.append(f"{seconds / shares[last] * (1 - shares[last]):.0f} s left")
        return parts


def _line(result: Result) -> str:
    data = result.data
    where = ", ".join(data["to"])
    if "shared_with" in data:
        return f"the same folder as on {data['shared_with']}: written once"
    if not data["files"]:
        return f"nothing to send, in {where}"
    return f"{data['files']} files received ({size_text(data['bytes'])}), verified, in {where}"


def show(report: Report) -> None:
    """One line per group of hosts to which the same happened, then who cost time."""
    for line, names in groups_by([r for r in report.results if r.ok], _line).items():
        click.echo(f"{click.style(fold(names), bold=True)}: {clean(line)}")
    for path in report.data["skipped"]:
        talk(f"warning: left out {clean(path)}: neither file, folder nor link")
    for cut in report.data["cuts"]:
        talk(f"host {cut['behind']} lost {cut['lost_seconds']:g} s when host {cut['host']} went out")


def sync_data(inventory: Inventory, data: Sequence[str], *, limit: str | None, via: Literal["chain", "rsync"]) -> Part:
    """Plan it; what is returned runs it."""
    from fleet.ops import broadcast

    plan = broadcast.make_plan(inventory, data, limit=limit, via=via)

    def run() -> Report:
        settings = settings_of()
        with DataLine("receiving", quiet=settings.quiet or settings.json) as line:

            def emit(event: Event) -> None:
                if isinstance(event, Notice) and not settings.json and not settings.quiet:
                    word = "note" if event.level == "info" else event.level
                    line.say(f"{word}: host {event.host}: {clean(event.message)}")
                line(event)

            with runtime(inventory, emit) as rt:
                return broadcast.execute(inventory, plan, rt)

    return Part("data", plan.describe(), run, show)
