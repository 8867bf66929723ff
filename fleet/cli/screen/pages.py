"""Makes pages for a browser. Each page is one file that needs no other and runs no script. Texts of nodes are always
cleaned and escaped, whatever a template does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.answers.runs import AttemptSeen, RankSeen, ReportedRun
from fleet.cli.line.hints import proposed
from fleet.cli.screen.output import clean_lines, fold
from fleet.model import grouped
from fleet.node.gang.ends import ranks_text
from fleet.rules.units import counted, seconds, size_text

if TYPE_CHECKING:
    from fleet.ops.run.find.report import RunReport

PAGES = Path(__file__).parent / "templates"
WIDTH, HEIGHT = 300.0, 100.0  # of a plot, in its own units
# for each measurement: its name, short title, title, formatter
COLUMNS = (
    ("use", "GPU", "GPUs in use, mean", "{:.0f} %".format),
    ("power", "POWER", "power, mean", "{:.0f} W".format),
    ("temperature", "TEMP", "GPUs' temperature, most", "{:.0f} °C".format),
    ("cpu", "CPU", "processors in use, mean", "{:.0f} %".format),
    ("memory", "MEMORY", "memory in use, most", size_text),
    ("received", "IN/S", "received a second, mean", size_text),
    ("sent", "OUT/S", "sent a second, mean", size_text),
)


def page(template: str, **values: Any) -> str:
    """Returns the page of a template with these values."""
    import jinja2  # slow: it takes as long as the rest of most commands

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        # clean every plain text; Markup, a subclass of str, marks text that is safe already
        finalize=lambda value: clean_lines(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(counted=counted, size=size_text, proposed=proposed, **values)


def report_page(report: RunReport) -> str:
    """Returns the page of a run."""
    run = report.read(ReportedRun)
    span = max(run.seconds, 1e-3)

    def path(points: Sequence[Mapping[str, float]], name: str, top: float) -> str:
        return " ".join(_steps(points, name, top, run.started, span))

    def band(points: Sequence[Mapping[str, float]], low: str, high: str, top: float) -> str:
        known = [point for point in points if low in point and high in point]
        around = [
            *_steps(known, low, top, run.started, span),
            *reversed([*_steps(known, high, top, run.started, span)]),
        ]
        return "M" + " L".join(step[1:] for step in around) + " Z" if known else ""

    def is_first(attempt: AttemptSeen, seen: RankSeen) -> bool:
        return run.first_failure is not None and attempt is run.attempts[-1] and run.first_failure.rank == seen.rank

    rows = grouped((seen.host, (attempt, seen)) for attempt in run.attempts for seen in attempt.ranks)
    places = {
        host: {rank: n for n, rank in enumerate(sorted({seen.rank for _, seen in of}))} for host, of in rows.items()
    }
    every = [point for points in report.points.values() for point in points]
    tops = {"power": max((point.get("power", 0.0) for point in every), default=0.0)}
    tops["network"] = max([1024.0, *(max(point.get("received", 0), point.get("sent", 0)) for point in every)])
    return page(
        "report.html",
        title=f"fleet report {run.run}",
        run=run,
        points=report.points,
        hosts=fold(run.ranks),
        length=seconds(run.seconds),
        half=seconds(run.seconds / 2),
        clock=clock,
        kind=kind,
        ranks_text=ranks_text,
        ending=ending,
        is_first=is_first,
        percent=lambda at: round(100 * min(max(0.0, at - run.started), span) / span, 3),
        tops=tops,
        rows=rows,
        places=places,
        columns=COLUMNS,
        path=path,
        band=band,
    )


def _steps(points: Sequence[Mapping[str, float]], name: str, top: float, start: float, span: float) -> Iterator[str]:
    """Yields the steps of an SVG path. The line has a gap where the value is not known."""
    letter = "M"
    for point in points:
        if name not in point:
            letter = "M"
            continue
        x = WIDTH * min(max(0.0, point["time"] - start), span) / span
        yield f"{letter}{x:.1f},{HEIGHT - min(point[name], top) / top * (HEIGHT - 4) - 2:.1f}"
        letter = "L"


def clock(at: float, form: str = "%-d %b %Y %H:%M:%S") -> str:
    """Returns a time in this machine's time zone."""
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"


def kind(seen: RankSeen) -> str:
    """Returns how a rank ended: "done", "failed", "killed" or "open"."""
    return "open" if not seen.known else "killed" if seen.signal else "failed" if seen.status else "done"


def ending(attempt: AttemptSeen, seen: RankSeen) -> str:
    """Returns how a rank ended, as a sentence."""
    how = f"signal {seen.signal}" if seen.signal else f"exit code {seen.status}" if seen.known else "no end known"
    return (
        f"rank {seen.rank} on {seen.host}, attempt {attempt.attempt}: {how} after {seconds(seen.ended - attempt.began)}"
    )
