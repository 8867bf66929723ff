"""Finds the host that the others wait for, by the samples of a run, and the evidence for it. It names no host rather
than a wrong one. Pure.

The figures of a host are the medians of its samples. For its GPUs: `use` in percent, total `power` in watts, `share` of
the power limit, lowest `clock` of the busy ones, and their number (`gpus`). For its processors: `cpu` in percent, the
CPUs that the run's threads `had`, and those that they `lacked`. A figure that is not known is NaN: comparisons with it
are false."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isnan, nan
from statistics import median_high
from typing import NamedTuple

from fleet.answers.runs import Slow
from fleet.protocol.messages.samples import GpuSample, Sample
from fleet.rules.gpu_use import COLD_POWER

LEAST_SAMPLES, LEAST_HOSTS = 5, 3
RECENT = 2.5  # times the pause between two samples: the most by which the hosts' last samples may differ
USE_MARGIN, USE_OTHERS = 20.0, 80.0  # percent
POWER_MARGIN, CLOCK_MARGIN = 1.3, 0.85
LACK_LEAST, LACK_MARGIN, READY_MARGIN = 0.4, 2.5, 1.5  # the first is in CPUs, the others are factors
WAIT_LEAST, WAIT_OTHERS, SENT_MARGIN = 0.7, 0.35, 1.5  # the first two are shares of all samples
CAPPED = "power cap"  # a reason of throttling that healthy GPUs at work have, too
Figures = Mapping[str, float]
Fold = Callable[[list[float]], float]


class Point(NamedTuple):
    """Holds the figures of a sample. waiting: for each connection (own address, other address, share of checks at which
    data waited to be sent, share at which data waited to be read); None if it is not known."""

    time: float
    figures: Figures
    waiting: tuple[tuple[str, str, float, float], ...] | None


def mean(values: Sequence[float]) -> float:
    """Returns the mean. A node may report values whose sum is infinite: the mean is then infinity, and
    statistics.fmean() would raise OverflowError."""
    return sum(values) / len(values)


def folded(fold: Fold, values: Iterable[float | None]) -> float:
    """Returns `fold` of the known values, NaN if there are none."""
    known = [value for value in values if value is not None]
    return fold(known) if known else nan


def point_of(sample: Sample, run: str, ranks: int) -> Point:
    """Returns the figures of a sample. Figures of GPUs are known only if the run has as many GPUs as ranks on the
    host."""
    ours = [gpu for gpu in sample["gpus"] if run in gpu["runs"]]
    gpus = ours if len(ours) == ranks else []
    working = [gpu for gpu in gpus if (gpu["use"] or 0.0) >= USE_OTHERS]

    def of(fold: Fold, name: str, gpus: Sequence[GpuSample]) -> float:
        return folded(fold, [gpu[name] for gpu in gpus])  # type: ignore[literal-required]

    cpu, had, lacked = (
        nan if it is None else it for it in (sample["cpu"], sample.get("run_cpu"), sample.get("run_delay"))
    )
    figures = {"cpu": cpu, "had": had, "lacked": lacked, "ready": had + lacked}
    figures |= {"use": of(mean, "use", gpus), "power": of(sum, "power", gpus), "clock": of(min, "clock", working)}
    limited = [gpu for gpu in gpus if gpu["power"] is not None and gpu["power_limit"]]
    figures["share"] = of(sum, "power", limited) / of(sum, "power_limit", limited)
    known = bool(gpus) and all(gpu["use"] is not None and gpu["throttle"] is not None for gpu in gpus)
    figures["slowed"] = float(any({*(gpu["throttle"] or ())} - {CAPPED} for gpu in working)) if known else nan
    figures["sent"] = sum(nan if ways[1] is None else ways[1] for ways in sample["net"].values())
    figures["gpus"] = float(len(sample["gpus"]))
    waiting = sample.get("waiting")
    return Point(sample["time"], figures, None if waiting is None else tuple(waiting))


def middle(points: Sequence[Point], of: Fold = median_high) -> dict[str, float]:
    """Returns the figures of a host: for each the median (or `of`) of its known values."""
    known = {name: [it.figures[name] for it in points if not isnan(it.figures[name])] for name in points[0].figures}
    return {name: of(values) if values else nan for name, values in known.items()}


def together(points: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    """Returns the samples of the time in which all hosts have samples. {} if a host's last sample is older than the
    others'."""
    times = {host: sorted(it.time for it in each) for host, each in points.items()}
    if not times or any(len(each) < 2 for each in times.values()):
        return {}
    pause = max(median_high(b - a for a, b in pairwise(each)) for each in times.values())
    since, last = max(each[0] for each in times.values()), [each[-1] for each in times.values()]
    if max(last) - min(last) > RECENT * pause:
        return {}
    return {host: [it for it in each if since - pause <= it.time <= min(last) + pause] for host, each in points.items()}


def slow_host(points: Mapping[str, Sequence[Point]]) -> Slow | None:
    """Returns the host, or the link, that the others wait for. None if there is none, or if it is not known which
    one."""
    points = together(points)
    if len(points) < 2 or any(len(each) < LEAST_SAMPLES for each in points.values()):
        return None
    known = {host: middle(each) for host, each in points.items()}
    signs = {host: [*_signs(known[host], [known[it] for it in known if it != host])] for host in known}
    found = [Slow([host], "; ".join(filter(None, texts))) for host, texts in signs.items() if texts]
    found = found or [*_slow_links(points, {host: each["sent"] for host, each in known.items()})]
    return found[0] if len(found) == 1 and found[0].evidence else None


def _signs(own: Figures, others: Sequence[Figures]) -> Iterator[str]:
    """Yields the evidence that the others wait for a host. An empty text is weak evidence: the host is not named, and
    neither is another one."""

    def ends(name: str) -> tuple[float, float]:
        values = [other[name] for other in others]
        return (nan, nan) if any(map(isnan, values)) else (min(values), max(values))

    clock, use = ends("clock")[0], ends("use")[0]
    if own["slowed"] > 0.5 and ends("slowed")[1] < 0.1 and own["clock"] <= CLOCK_MARGIN * clock:
        yield f"GPUs slowed down to {own['clock']:.0f} MHz, elsewhere {clock:.0f} or more"
    # GPUs that wait in a collective are busy at little power. Some work does that, too, but then on all hosts.
    share = ends("share")[1]
    cold, hotter = use >= USE_OTHERS and share < COLD_POWER, own["share"] >= POWER_MARGIN * share
    idle = own["use"] <= use - USE_MARGIN
    # with equal work, ranks with too few CPUs are ready to run all the time; the others wait for them instead
    lacked, ready = ends("lacked")[1], ends("ready")[1]
    short = own["lacked"] >= max(LACK_LEAST, LACK_MARGIN * lacked) and own["ready"] >= READY_MARGIN * ready
    if short:
        text = f"its ranks had {own['had']:.2g} CPUs and were ready for {own['lacked']:.2g} more"
        waited_for = max(own["gpus"], ends("gpus")[1]) == 0 or cold and (hotter or idle)
        yield f"{text}, elsewhere for {lacked:.2g} more at most" if waited_for else ""
    if len(others) + 1 >= LEAST_HOSTS and cold and hotter and idle:
        text = f"GPUs {own['use']:.0f}% busy, elsewhere {use:.0f}% or more at little power"
        yield f"{text}: they wait for its CPUs or data"


def _slow_links(points: Mapping[str, Sequence[Point]], sent: Mapping[str, float]) -> Iterator[Slow]:
    """Yields the link on which data waits, or the host that all such links share, if no data waits elsewhere. It yields
    nothing if a sender of such a link sends more than others, or if its receiver does not read what arrives."""
    shares = _shares(points)
    slow = [pair for pair, (unsent, _) in shares.items() if unsent >= WAIT_LEAST]
    rest = max((unsent for pair, (unsent, _) in shares.items() if pair not in slow), default=1.0)
    known = len(points) >= LEAST_HOSTS and not any(map(isnan, sent.values()))
    less = known and all(sent[one] <= SENT_MARGIN * median_high(sent.values()) for one, _ in slow)
    read = all(shares.get((other, one), (nan, nan))[1] <= WAIT_OTHERS for one, other in slow)
    if slow and rest <= WAIT_OTHERS and less and read:
        least = min(shares[pair][0] for pair in slow)
        for hosts in slow if len(slow) == 1 else ([it] for it in set.intersection(*map(set, slow))):
            yield Slow(hosts, f"data waits on its network {least:.0%} of the time, elsewhere {rest:.0%} at most")


def _shares(points: Mapping[str, Sequence[Point]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Returns (host, other host) -> two shares of the time: in which data for the other waits to be sent, and in which
    data from the other waits to be read. Returns {} if a sample does not have them. An address that two hosts have is
    left out."""
    whose = dict[str, set[str]]()
    sums = dict[tuple[str, str], tuple[float, float]]()
    for host, each in points.items():
        for point in each:
            if point.waiting is None:
                return {}
            for wait in point.waiting:
                whose.setdefault(wait[0], set()).add(host)
    only = {one: min(hosts) for one, hosts in whose.items() if len(hosts) == 1}
    for host, each in points.items():
        for point in each:
            now = dict[tuple[str, str], tuple[float, float]]()
            for one, other, unsent, unread in point.waiting or ():
                if one in only and only.get(other, host) != host:
                    before = now.get((host, only[other]), (0.0, 0.0))
                    now[host, only[other]] = max(unsent, before[0]), max(unread, before[1])
            for pair, (unsent, unread) in now.items():
                before = sums.get(pair, (0.0, 0.0))
                sums[pair] = before[0] + unsent, before[1] + unread
    return {pair: (both[0] / len(points[pair[0]]), both[1] / len(points[pair[0]])) for pair, both in sums.items()}
