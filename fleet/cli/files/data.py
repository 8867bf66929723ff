"""Shows the data and wheels of `fleet sync`, and runs `fleet get`, which fetches data."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from fleet.answers.sync import Broadcasted, Got, HasImage, HasWheels, Mirrored, Received, Synced, Wheels
from fleet.cli.context import perform
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.options import common_options, request_options, runs_dir_option
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, fold, inform, write_grouped
from fleet.cli.screen.progress import ProgressLine, bar
from fleet.model import Report, Result, grouped
from fleet.requests.runs import Get
from fleet.rules.units import counted, few, size_text

FEW = 6  # so many nodes are shown one by one
BAR_COLUMNS = 100  # a terminal with fewer columns shows no bar: the text needs the room
RATE_SECONDS = 5.0  # the rate is the mean over so long
# state -> how the table names it for a host that is not done
LABELS = {"there": "has", "other": "has another", "absent": "lacks", "broken": "has a part of", "unknown": "not known:"}


class DataLine(ProgressLine):
    """Draws the progress of a transfer: percent of all bytes, the mean rate of a node, the time left, and each node's
    percentage or state. If there are more than FEW nodes, it counts how many are in which state. A node's state is the
    `what` of its last Progress."""

    info = "note: "

    def __init__(self) -> None:
        super().__init__()
        self._seen: deque[tuple[float, float]] = deque()

    def details(self, seconds: float) -> list[str]:
        receiving = {name: event.total for name, event in self._last.items() if event.total}
        if not receiving:
            return []
        shares = {name: min(1.0, self._last[name].done / total) for name, total in receiving.items()}
        share = sum(shares.values()) / len(shares)
        parts = [f"{bar(share, BAR_COLUMNS)}{100 * share:.0f}% of {size_text(max(receiving.values()))} each"]
        rate = self._rate(seconds, sum(self._last[name].done for name in receiving) / len(receiving))
        if rate:
            parts.append(f"{size_text(rate)}/s")
            left = max(
                (total - self._last[name].done for name, total in receiving.items() if self._last[name].what != "away"),
                default=0.0,
            )
            parts += [f"{left / rate:.0f} s left"] if left else []
        each = self._each(shares) if len(shares) <= FEW else []
        room = (terminal.width(sys.stderr) or 1000) - len("6 of 6 hosts") - 1
        fits = each and sum(2 + terminal.cells(part) for part in parts + each) <= room
        return parts + (each if fits else self._states(shares))

    def _rate(self, seconds: float, done: float) -> float:
        """Returns bytes a second, over the last few seconds."""
        if self._seen and seconds < self._seen[-1][0]:  # another round began
            self._seen.clear()
        self._seen.append((seconds, done))
        while len(self._seen) > 2 and seconds - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        (t0, d0), (t1, d1) = self._seen[0], self._seen[-1]
        return (d1 - d0) / (t1 - t0) if t1 > t0 else 0.0

    def _each(self, shares: Mapping[str, float]) -> list[str]:
        return [
            f"{clean(name)} "
            + (f"{100 * share:.0f}%" if self._last[name].what == "receiving" else self._last[name].what)
            for name, share in sorted(shares.items())
        ]

    def _states(self, shares: Mapping[str, float]) -> list[str]:
        parts = [
            f"{len(names)} {state}" + (f" ({fold(names)})" if state == "away" else "")
            for state, names in grouped((self._last[name].what, name) for name in shares).items()
        ]
        last = min(shares, key=lambda name: shares[name])
        if shares[last] < sum(shares.values()) / len(shares) - 0.05:
            parts.append(f"slowest: {clean(last)} {100 * shares[last]:.0f}%")
        return parts


def warn_of_own(answers: Iterable[tuple[str, Synced | Received]]) -> None:
    """Prints which of the nodes' own files stayed, and the folders that keep the replaced ones."""
    answers = list(answers)
    for left, names in grouped((tuple(one.left or ()), host) for host, one in answers).items():
        if left:
            what = clean(few(left, 5))
            inform(f"warning: host {fold(names)}: left as the node has it, not as the source: {what}")
    for aside, names in grouped((tuple(one.aside or ()), host) for host, one in answers).items():
        if aside:
            inform(f"host {fold(names)}: what was replaced is kept for 30 days in {clean(', '.join(aside))}")


def warn_of_source(whole: Mirrored | Broadcasted) -> None:
    """Prints which parts of a source do not arrive unchanged."""
    for path in whole.skipped:
        inform(f"warning: left out {clean(path)}: neither file, folder nor link")
    if whole.hard_links:
        inform(f"warning: {whole.hard_links} files are hard links of each other: they arrive as separate files")


def _line(result: Result) -> str:
    got = result.read(Received)
    where = ", ".join(got.to)
    if got.shared_with is not None:
        return f"the same folder as on {got.shared_with}: written once"
    if not got.files:
        return f"nothing to send, in {where}"
    return f"{counted(got.files, 'file')} received ({size_text(got.bytes or 0)}), verified, in {where}"


def show_data(report: Report) -> None:
    """Prints a line for each group of hosts with the same result, then the hosts whose loss delayed others."""
    whole = report.read(Broadcasted)
    write_grouped([r for r in report.results if r.ok], _line)
    warn_of_own((r.host, r.read(Received)) for r in report.results if r.ok)
    warn_of_source(whole)
    for cut in whole.cuts:
        inform(f"host {cut['behind']} was delayed by {cut['lost_seconds']:g} s when host {cut['host']} was given up")


def show_wheels(report: Report) -> None:
    """Prints a line for each group of hosts that have the same wheels now."""
    versions = {wheel.name: wheel.version for wheel in report.read(Wheels).wheels}

    def line(result: Result) -> str:
        has = result.read(HasWheels)
        states = has.wheels or {}
        named = {state: [f"{n} {versions[n]}" for n, s in states.items() if s == state] for state in states.values()}
        if not result.ok:
            return ", ".join(f"{LABELS[state]} {few(named[state], 5)}" for state in LABELS if state in named)
        new, old = named.get("installed", []), len(named.get("there", []))
        parts = [f"installed {few(new, 5)}"] if new else []
        there = "it has what was requested" if not old else "it is there" if old == 1 else f"all {old} are there"
        parts += [] if new and not old else [f"{old} already there" if new else f"nothing to do, {there}"]
        return f"{', '.join(parts)}, in {has.python}"

    write_grouped([r for r in report.results if r.read(HasWheels).wheels is not None], line)


def show_image(report: Report) -> None:
    """Prints what each host's runtime has now."""

    def line(result: Result) -> str:
        has = result.read(HasImage)
        what = {
            "loaded": f"loaded into {has.runtime}",
            "there": f"nothing to do, {has.runtime} has it",
            "unknown": f"not known whether it is the same, {has.runtime} has one of that name by another kind of id: "
            f"remove it there ({has.runtime} rmi NAME), and run this again",
        }[has.state]
        return f"{what}, id {(has.id or '')[:12]}"

    write_grouped((result for result in report.results if result.ok), line)


# -- fleet get
@click.command("get", cls=Verb, examples=("fleet get checkpoints/last.pt", "fleet get latest --to results"))
@click.argument("what", metavar="RUN|PATH")
@click.option(
    "--from", "sources", metavar="NODESET", shell_complete=completed("nodeset"), help="From these hosts only."
)
@request_options(
    Get, "to", "force", "all", "copy_unsafe_links", to={"type": click.Path(path_type=Path, file_okay=False)}
)
@runs_dir_option(help="Where logs are, on this machine: they name a RUN's folder.")
@common_options
def get(what: str, sources: str | None, **given: Any) -> int:
    """Bring files of the hosts here: a PATH, relative to the host's workdir, or what a RUN wrote in its folder since it
    began. A name without a '/' is a run if there is one.

    It gets the requested name. Where all hosts answered and one has it, it comes as it is; else each host has
    a folder of its own. What an earlier get put here is replaced, anything else only with your consent, or --force.

    All is verified by digest, and each file comes as it was at one moment: one that is written to all the time is an
    error, and what is here of it stays; a log that grows comes as far as it was. An interrupted get goes on where it
    ended. A host that gets nowhere for 2 minutes is given up.
    """
    return perform(
        lambda fleet: (fleet.select(sources, option="--from") if sources else fleet).plan.get(what, **given),
        show_got,
        line=DataLine(),
    )


def show_got(report: Report) -> None:
    def text_of(result: Result) -> str:
        got = result.read(Got)
        if not got.to:
            return "has none of it"
        here = f"{counted(got.same, 'file')} already here" if got.same else ""
        came = f"{counted(got.files, 'file')}, {size_text(got.bytes)}" if got.files or not got.same else ""
        return f"{', '.join(filter(None, [came, here]))}, in {clean(got.to)}"

    write_grouped((result for result in report.results if result.ok), text_of)
