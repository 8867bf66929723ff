"""Runs `fleet top`: shows the use of the hosts' GPUs, networks and CPUs, once, or live until q or Ctrl-C."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fleet.answers.hosts import HostSampled
from fleet.cli.context import finish, perform, the_fleet
from fleet.cli.inventory import enter_all
from fleet.cli.line.command import ONLY_LOOKS, Verb, completed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import common_options, request_options, runs_dir_option
from fleet.cli.screen import terminal
from fleet.cli.screen.layout import GAP, LEAST, table
from fleet.cli.screen.output import clean, echo, fold, inform, write_json
from fleet.errors import EXIT_INTERRUPTED, FleetError
from fleet.events import Event, Notice
from fleet.model import Report, grouped
from fleet.requests.runs import Top
from fleet.rules.units import counted, few, short

TITLES = (
    *("HOST", "GPU", "USE", "POWER", "MEMORY", "TEMP", "CLOCK", "SLOWED BY"),
    *("NET IN/OUT", "IB IN/OUT", "CPU", "LOAD", "RAM", "RUN"),
)
RIGHT = TITLES[1:7] + TITLES[8:13]
SPARE = ("LOAD", "RAM", "CLOCK", "TEMP", "MEMORY", "CPU")  # columns that a narrow terminal goes without, in this order
LIMITS = {"power": "power_limit", "memory": "memory_total"}  # a GPU's value -> its limit, shown after the value
FREE, COLD = "free", "busy at little power"
SORTS = ("host", "use", "power", "memory", "temperature", "network", "cpu", "load")
Sample = Mapping[str, Any]


@click.command(
    "top",
    cls=Verb,
    interrupted=ONLY_LOOKS,
    examples=("fleet top", "fleet top -w 'gpu[01-04]' --sort power", "fleet top latest --once"),
)
@click.argument("run", required=False, shell_complete=completed("run_here"))
@click.option("--once", is_flag=True, help="One sample of each host, and no more.")
@request_options(Top, "every")
@click.option("--sort", type=click.Choice(SORTS), default="host", help="Hosts by this, largest first [host].")
@runs_dir_option()
@common_options
def top(run: str | None, once: bool, every: float, sort: str, runs_dir: Path) -> int:
    """Show what GPUs, network and CPUs of the hosts do, until q or Ctrl-C: one connection a host, on which it sends
    samples. With a RUN only its hosts: an id, a unique prefix, a name, or 'latest'.

    Where stdout is no terminal it is one sample, and with --json a line for each until Ctrl-C.
    """
    enter_all()
    json, draws = settings_of().json, terminal.interactive(sys.stdout) and terminal.live(sys.stderr)
    if once or settings_of().dry_run or not (json or draws):
        return perform(
            lambda fleet: fleet.plan.top(run, every=every, runs_dir=runs_dir),
            lambda report: _show(report, sort),
            requested=True,
        )
    enough = threading.Event()
    fleet = the_fleet()
    with Board(fleet.names, sort, every, json) as board:
        planned = fleet.plan.top(run, every=every, runs_dir=runs_dir, count=0, each=board)
        with fleet.runtime(board.notice) as runtime:

            def leave() -> None:
                enough.set()
                runtime.cancel.set()

            with terminal.pressed({} if json else {b"q": leave}):
                report = planned.work(runtime)
    code = finish(report, lambda it: _show(it, sort), requested=True)
    return code if enough.is_set() else EXIT_INTERRUPTED


class Board(terminal.Ticking):
    """Draws the last sample of each host. With `json` it writes each sample as a JSON line instead."""

    def __init__(self, names: Iterable[str], sort: str, every: float, json: bool) -> None:
        super().__init__(not json)
        self._sort, self._every, self._json = sort, every, json
        self._found: dict[str, HostSampled | FleetError] = {name: HostSampled() for name in names}
        self._due = 0.0

    def __call__(self, host: str, found: HostSampled | FleetError) -> None:
        self._found[host] = found
        if self._json:
            error = found.as_json() if isinstance(found, FleetError) else None
            sample = {"time": time.time()} if isinstance(found, FleetError) else found.sample or {}
            write_json({"event": "sample", "host": host, "ok": error is None, "error": error, **sample})

    def notice(self, event: Event) -> None:
        if isinstance(event, Notice) and not self._json:
            inform(clean(event.message))

    def tick(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + min(self._every, 2.0)
            columns, rows = terminal.size(sys.stderr)
            first, *lines = lines_of(self._found, self._sort, columns - 1, rows)
            terminal.draw([f"{first}; q ends it", *lines])


def _show(report: Report, sort: str) -> None:
    found = {result.host: result.error or result.read(HostSampled) for result in report.results}
    for line in lines_of(found, sort, terminal.width(sys.stdout)):
        echo(line, wrap=False)


def lines_of(
    found: Mapping[str, HostSampled | FleetError], sort: str, width: int | None, rows: int | None = None
) -> list[str]:
    """Returns a summary, then a row for each GPU. If these would be more than `rows` lines, it returns a row for each
    host."""
    answers = {host: it for host, it in found.items() if isinstance(it, HostSampled) and it.sample is not None}
    samples = {host: it.sample or {} for host, it in answers.items()}
    gpus = [gpu for sample in samples.values() for gpu in sample["gpus"]]
    used = [gpu["use"] for gpu in gpus if gpu["use"] is not None]
    busy = f" {_sum(used) / len(used):.0f}% busy, {short(_sum(gpu['power'] for gpu in gpus))}W" if used else ""
    lines = [f"{time.strftime('%H:%M:%S')}  {counted(len(samples), 'host')}, {counted(len(gpus), 'GPU')}{busy}"]
    for text in (FREE, COLD):
        which = {name: answer.free if text == FREE else answer.cold for name, answer in answers.items()}
        groups = grouped((",".join(map(str, indexes)), name) for name, indexes in which.items() if indexes)
        where = few((f"{fold(names)}:{indexes}" for indexes, names in groups.items()), 8)
        lines += [f"{counted(sum(map(len, which.values())), 'GPU')} {text}: {where}"] if groups else []
    errors = {host: it for host, it in found.items() if isinstance(it, FleetError)}
    lines += [clean(f"no answer from {host}: {error.message}") for host, error in errors.items()]
    each = rows is None or len(lines) + 1 + max(len(gpus), len(samples)) < rows
    ordered = sorted(samples.items(), key=lambda item: -_rank(sort, item[1]))
    return [*lines, *_table([row for host, sample in ordered for row in _rows(host, sample, each)], width)]


def _rank(sort: str, sample: Sample) -> float:
    if sort in ("use", "power", "memory", "temperature"):
        values = [gpu[sort] or 0.0 for gpu in sample["gpus"]]
        return _sum(values) if sort == "power" else max(values, default=0.0)
    rates = [rate for kind in ("net", "ib") for ways in sample[kind].values() for rate in ways]
    return 0.0 if sort == "host" else _sum(rates) if sort == "network" else sample[sort] or 0.0


def _table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    columns = dict(zip(TITLES, zip(*rows, strict=True), strict=True)) if rows else {}
    columns = {title: column for title, column in columns.items() if any(column)}
    for spare in SPARE:
        sizes = [max(map(len, (title, *column))) for title, column in columns.items()]
        last = min(sizes.pop(), LEAST) if "RUN" in columns else 0
        if width is not None and sum(sizes) + len(GAP) * len(sizes) + last > width:
            columns.pop(spare, None)
    return (
        table([*columns], list(zip(*columns.values(), strict=True)), width, right=RIGHT, shorten=True) if rows else []
    )


def _rows(host: str, sample: Sample, each: bool) -> list[tuple[str, ...]]:
    """Returns a row for each GPU, or, unless `each`, one row for all GPUs. The first row has the host's network, CPU,
    load and memory."""
    gpus = sample["gpus"]
    groups = [[gpu] for gpu in gpus] if each and gpus else [gpus]
    load, cpu = (sample[name] for name in ("load", "cpu"))
    own = (
        *(
            "/".join(short(_sum(ways[way] for ways in sample[kind].values())) for way in (0, 1)) * bool(sample[kind])
            for kind in ("net", "ib")
        ),
        "?" if cpu is None else f"{cpu:.0f}%",
        "?" if load is None else f"{load:.1f}",
        f"{short(sample['memory'])}/{short(sample['memory_total'])}",
    )
    whose = any(gpu["runs"] for gpu in gpus)  # if none, it is not known which GPU a run of the host has
    return [
        (
            host * first,
            *_gpus(group),
            *(own if first else ("",) * len(own)),
            _whose(group, [] if whose or not first else sample["runs"]),
        )
        for first, group in zip([True, *[False] * len(groups)], groups, strict=False)
    ]


def _gpus(gpus: Sequence[Sample]) -> tuple[str, ...]:
    """Returns the cells of these GPUs: mean use, sums of power and memory, highest temperature, lowest clock."""
    known = {name: [gpu[name] for gpu in gpus if gpu[name] is not None] for name in (gpus[0] if gpus else ())}
    if not gpus:
        return ("",) * 7
    power, memory = (f"{short(_sum(known[name]))}/{short(_sum(known[most]))}" for name, most in LIMITS.items())
    return (
        str(gpus[0]["index"]) if len(gpus) == 1 else f"x{len(gpus)}",
        f"{_sum(known['use']) / len(known['use']):.0f}%" if known["use"] else "?",
        f"{power}W" if known["power"] else "?",
        memory if known["memory"] else "?",
        f"{max(known['temperature']):.0f}C" if known["temperature"] else "?",
        f"{min(known['clock']):.0f}" if known["clock"] else "?",
        clean(", ".join(dict.fromkeys(text for texts in known["throttle"] for text in texts))),
    )


def _whose(gpus: Sequence[Sample], runs: Sequence[str]) -> str:
    """Returns the runs that have processes on these GPUs, and how many processes belong to no run. runs: the host's
    runs, which are given if it is not known which GPU has a run."""
    others = sum(gpu["others"] or 0 for gpu in gpus)
    mine = dict.fromkeys([*runs, *(run for gpu in gpus for run in gpu["runs"])])
    return ", ".join([*mine, *([f"{others} of no run"] if others else [])])


def _sum(values: Iterable[float | None]) -> float:
    return sum(value for value in values if value is not None)
