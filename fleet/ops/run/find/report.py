"""Makes `fleet report RUN`, one page about a run from its folder on this machine. Contacts no host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.answers.event import Begun, RunEvent
from fleet.answers.run_events import Advised, Attempt, RankOver, Restart, RunOver
from fleet.answers.run_start_events import Attached, Found, Running
from fleet.answers.runs import AttemptSeen, RankSeen, ReportedRun, RunSummary
from fleet.events import Notice
from fleet.inventory.secret import masked_argv
from fleet.model import Report, grouped
from fleet.ops.run.end.failure import typed_here
from fleet.ops.run.find.again import Facts
from fleet.ops.run.find.attach import report_of
from fleet.ops.run.kept.documents import RUN, read_object, several, stored
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import choose, names, read_run
from fleet.ops.run.kept.metrics import Point, means, read_metrics
from fleet.ops.run.kept.reader import NewEvents
from fleet.ops.run.plan.origin import SHORT, versions
from fleet.protocol.state import ATTEMPT, METRICS

MOST_NOTICES, MOST_RANKS = 200, 1 << 16  # limits of what is shown: the last notices; ranks of an attempt
LATE_SECONDS = 60.0  # tolerance: for a node's clock, and for samples before the ranks begin or after they end


@dataclass(frozen=True)
class RunReport(Report):
    """Reports on a run. points: host -> its samples, in the order of time."""

    points: Mapping[str, Sequence[Point]] = field(default_factory=dict)


def report_on(argument: str, runs_dir: Path) -> RunReport:
    """Returns the report from the folder of a run. Raises UsageError if the argument names no run that has a folder
    here."""
    path = runs_dir / choose(argument, names(runs_dir))
    run, plan, ended = read_run(path), read_object(path / RUN), report_of(RunFolder(path))
    summary = ended.read(RunSummary) if ended is not None else RunSummary()
    happened = list(NewEvents(path / "events.jsonl").read())
    over, now = _over(happened), time.time()
    points, odd = _points(path, run.started - LATE_SECONDS, (over or now) + LATE_SECONDS)
    last = [notice.time for notice in happened] + [of[-1]["time"] for of in points.values()]
    until = over or max([run.started, *last, *[now] * (run.state == "followed")])
    attempts = _attempts(happened, _planned(plan), run.started, until)
    ranks = {seen.rank: seen.host for seen in attempts[-1].ranks} if attempts else _planned(plan)
    notices = [notice for notice in happened if notice.level != "info" and not notice.has(RankOver)]
    answer = ReportedRun(
        run=run.run,
        state=run.state,
        exit_code=run.exit_code,
        started=run.started,
        seconds=until - run.started,
        owner=str(plan.get("owner") or ""),
        command=_command(plan),
        code=_code(plan),
        engine=run.engine,
        world_size=len(ranks),
        ranks=grouped((host, rank) for rank, host in ranks.items()),
        versions=_versions(plan),
        attempts=attempts,
        first_failure=summary.first_failure,
        tracebacks=summary.tracebacks,
        notices=[_shown(notice) for notice in notices[-MOST_NOTICES:]],
        metrics={host: means(of) for host, of in points.items()},
        odd_samples=odd,
        next=[typed_here(step, runs_dir) for step in summary.next],
        logs=str(path),
        broken=run.broken,
    )
    return RunReport("report", (), 0, answer=answer, points=points)


def _shown(notice: Notice) -> dict[str, Any]:
    of = {"time": notice.time, "level": notice.level, "host": notice.host, "message": notice.message}
    return {**of, "hint": next((_remedy(event) for event in notice.happened), None)}


def _remedy(event: RunEvent) -> str | None:
    return event.remedy if isinstance(event, Advised) else event.hint if isinstance(event, Found) else None


def _over(happened: Sequence[Notice]) -> float | None:
    """Returns the recorded time of the run's end; None if it has not ended, or has begun again since."""
    over = None
    for notice in happened:
        over = notice.time if notice.has(RunOver) else None if notice.has(Running, Attempt) else over
    return over


def _planned(plan: Mapping[str, Any]) -> dict[int, str]:
    """Returns rank -> its host in the first attempt, from run.json."""
    hosts = stored(dict[str, Any], plan, "hosts") or {}
    return dict(sorted((rank, name) for name in hosts for rank in several(int, hosts, name, "ranks")))


def _placed(event: Begun) -> dict[int, str]:
    """Returns rank -> its host in an attempt that has begun. A host's ranks end before the first rank of the next
    host."""
    size = min(event.world_size, MOST_RANKS)
    firsts = sorted((first, host) for host, first in event.first_ranks.items())
    nexts = [*(first for first, _ in firsts[1:]), size]
    return {
        rank: host
        for (first, host), following in zip(firsts, nexts, strict=False)
        for rank in range(max(first, 0), min(following, size))
    }


def _command(plan: Mapping[str, Any]) -> list[str]:
    typed = several(str, plan, "fleet", "argv")
    return masked_argv(typed or [stored(str, plan, "script") or "", *several(str, plan, "args")])


def _code(plan: Mapping[str, Any]) -> str | None:
    commit, branch, diff = (stored(str, plan, "code", name) for name in ("commit", "branch", "diff"))
    if commit is None:
        return None
    on = f" of branch {branch}" * (branch is not None)
    changed = stored(bool | int, plan, "code", "dirty")
    return f"commit {commit[:SHORT]}{on}" + f", with changes, which {diff or 'no file'} holds" * bool(changed)


def _versions(plan: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions on the first host: name -> version."""
    first = next(iter(stored(dict[str, Any], plan, "facts") or ()), "")
    if (facts := stored(Facts, plan, "facts", first)) is None:
        return {}
    return {**versions(facts), "fleet": str(stored(str, plan, "fleet", "version"))}


def _attempts(happened: Sequence[Notice], planned: Mapping[int, str], start: float, until: float) -> list[AttemptSeen]:
    """Returns the attempts with their ranks, and when and how each rank ended, if known. If no event shows the ranks of
    an attempt, the attempt has only the ranks whose end is recorded. planned: rank -> host, in the first attempt.
    start, until: the beginning and the end of the run."""
    begins, whys, ends = dict[int, float](), dict[int, str](), dict[int, dict[int, RankSeen]]()
    placed = {0: planned}
    for notice, event in ((each, event) for each in happened for event in each.happened):
        if isinstance(event, Running | Attempt | Attached):  # Attached: another head began the attempt
            number, is_first = event.attempt or 0, isinstance(event, Attached) and not event.attempt
            begins.setdefault(number, (event.started if is_first else None) or notice.time)
            placed[number] = _placed(event) or placed.get(number, {})
        elif isinstance(event, Restart):
            whys[event.attempt - 1] = notice.message
        elif isinstance(event, RankOver):
            known = event.status is not None or event.signal is not None
            host = notice.host or placed.get(event.attempt, {}).get(event.rank, "")
            seen = RankSeen(event.rank, host, notice.time, event.status, event.signal, known)
            ends.setdefault(event.attempt, {})[event.rank] = seen
    found = []
    for number in sorted({*begins, *ends}):
        over = min([until, *(at for other, at in begins.items() if other > number)])
        its = placed.get(number, {})
        open_ones = {rank: RankSeen(rank, host, over, None, None, False) for rank, host in its.items()}
        bars = sorted((open_ones | ends.get(number, {})).values(), key=lambda seen: seen.rank)
        last = max((each.ended for each in bars), default=over)
        found.append(AttemptSeen(number, begins.get(number, start), last, whys.get(number), bars))
    return found


def _points(path: Path, since: float, until: float) -> tuple[dict[str, list[Point]], int]:
    """Returns (host -> the points of all attempts, the number of samples outside the time of the run)."""
    found, odd = dict[str, list[Point]](), 0
    for folder in (path, *sorted(path.glob(f"{ATTEMPT}[0-9]*"))):
        for file in sorted(folder.glob(f"*/{METRICS}")):
            if not (folder.is_symlink() or file.parent.is_symlink()):
                points, others = read_metrics(file, since, until)
                found.setdefault(file.parent.name, []).extend(points)
                odd += others
    return {host: sorted(of, key=lambda point: point["time"]) for host, of in found.items() if of}, odd
