"""Finds the GPUs or hosts that compute or copy more slowly than their peers. Peers are parts of the same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median, median_high
from typing import Any, NamedTuple

from fleet.errors import Reason
from fleet.model import grouped
from fleet.rules.gpu_state import judged
from fleet.rules.rule import MISSING, Finding, Rule, Sentence, View, lookup

# A part is slow if it is below the median by more than this share. GPUs: 5 % in microsoft/superbench
# data-diagnosis.md. Processors: more, because they share caches, clocks and hosts.
FLOORS = {"GPU": 0.05, "CPU": 0.2}
SPREADS = 3.0  # standard deviations, computed from the median deviation, which slow parts hardly change
NORMAL = 1.4826  # standard deviation / median deviation, of normally distributed values
FEWEST = 3  # parts to compare: of two, either may be at fault
UNLIKE = 0.75  # share of the median (of two parts: of the faster one); healthy parts of one model do not differ by more
MEASURES = {"tflops": "TFLOP/s in a matrix product", "gbytes": "GB/s in a copy of its memory"}


class Part(NamedTuple):
    """A GPU, or all cores of a host (`gpu` is None). model: parts of the same model are peers; None if it is not
    known."""

    host: str
    gpu: int | None
    model: str | None

    @property
    def title(self) -> str:
        return self.host if self.gpu is None else f"{self.host} GPU {self.gpu}"


Speeds = tuple[tuple[Part, Mapping[str, float]], ...]  # what was measured on a host


def speeds(view: View) -> Any:
    known = [each for each in view.get("speeds") or () if "tflops" in each]
    models = {gpu["index"]: gpu.get("name") for gpu in view.get("gpus") or ()}
    cpu, cores = lookup(view, "cpu.model"), lookup(view, "cpu.usable")
    models[None] = f"{cpu}, {cores} cores" if isinstance(cpu, str) and isinstance(cores, int) else None
    found = tuple((Part(view["want"].host, each["gpu"], models.get(each["gpu"])), each) for each in known)
    return found or MISSING


def measured_in(views: Mapping[str, View]) -> dict[Part, Mapping[str, float]]:
    return {part: each for view in views.values() if (of := speeds(view)) is not MISSING for part, each in of}


def rated(rate: float) -> str:
    """Returns a rate in three digits: "0.069", "61.2", "1540"."""
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def slow_parts(rates: Mapping[Part, float]) -> set[Part]:
    """Returns the parts of one model that are below the median by more than the floor and the spread. Fewer than three
    parts are not compared."""
    if len(rates) < FEWEST:
        return set()
    usual = median(rates.values())
    spread = NORMAL * median(abs(rate - usual) for rate in rates.values())
    floor = FLOORS["CPU" if next(iter(rates)).gpu is None else "GPU"]
    return {part for part, rate in rates.items() if rate < usual - max(floor * usual, SPREADS * spread)}


def by_model(values: Mapping[str, Speeds]) -> Iterator[tuple[str, str, dict[Part, float]]]:
    """Yields (measure, model, part -> its rate)."""
    every = [(part, each) for of in values.values() for part, each in of]
    for measure in MEASURES:
        for model, found in grouped((part.model, (part, each[measure])) for part, each in every).items():
            if model is not None:
                yield measure, model, dict(found)


def differ(rates: Mapping[Part, float]) -> bool:
    """Returns whether one of these parts, all of the same model, must be slow while it is not known which one."""
    usual = median_high(rates.values())  # of two the faster one
    return min(rates.values()) < UNLIKE * usual and not slow_parts(rates)


def compared(rule: str, views: Mapping[str, View]) -> set[tuple[str, int | None]]:
    """Returns the parts, as (host, GPU), that `rule` was able to judge: parts that were measured and compared with
    enough peers."""
    measured = measured_in(views)
    if rule == "bench-failed":
        return {(part.host, part.gpu) for part in measured}
    values = {name: of for name, view in views.items() if (of := speeds(view)) is not MISSING}
    left, found = set[Part](), set[Part]()
    for _, _, rates in by_model(values):
        is_enough = len(rates) >= FEWEST and not differ(rates) if rule == "bench-slow" else len(rates) > 1
        (found if is_enough else left).update(rates)
    return {(part.host, part.gpu) for part in found - left}


def slower(rule: Rule, values: Mapping[str, Speeds]) -> Iterator[Finding]:
    """Yields a finding for each host with slow parts: their rates and the median of their peers."""
    for measure, model, rates in by_model(values):
        slow = slow_parts(rates)
        usual = median(rates.values())
        for host, parts in grouped((part.host, part) for part in rates if part in slow).items():
            own = [rated(rate) for rate in sorted(rates[part] for part in parts)]
            gpus = sorted(part.gpu for part in parts if part.gpu is not None)
            which = f"GPU {', '.join(map(str, gpus))} reaches" if gpus else "its processors reach"
            span = own[0] + f" to {own[-1]}" * (own[0] != own[-1])
            text = f"{which} {span} {MEASURES[measure]}, the median of {len(rates)} ({model}) is {rated(usual)}"
            message = Reason("{hosts}: ", hosts=host) + Reason.of_node(text)
            yield rule.found([host], message, remedy=None if gpus else CPU, gpus=gpus)


def unlike(rule: Rule, values: Mapping[str, Speeds]) -> Iterator[Finding]:
    """Yields a finding for each model whose parts differ, if it is not known which one is slow."""
    for measure, model, rates in by_model(values):
        if differ(rates):
            each = [f"{part.title} {rated(rates[part])}" for part in sorted(rates, key=rates.__getitem__)]
            some = ", ".join(each) if len(each) <= 4 else f"{', '.join(each[:2])} to {', '.join(each[-2:])}"
            text = f"{len(rates)} alike ({model}) differ: {some} {MEASURES[measure]}"
            yield rule.found([name for name in values if any(part.host == name for part in rates)], text)


def failed(view: View) -> Sentence | None:
    errors = {each["gpu"]: each["error"] for each in view.get("speeds") or () if each.get("error")}
    if None in errors:
        return Sentence(Reason("" if view.get("gpus") else "its processors: ") + Reason.of_node(errors[None]))
    return judged(view, lambda gpu: errors.get(gpu["index"]) and f"failed: {errors[gpu['index']]}", None)


CPU = "'top' there shows what else computes; a cgroup's cpu.max, a governor that saves power, or heat?"
RULES = (
    Rule(
        "bench-failed",
        failed,
        "clear",
        "measuring",
        "where torch works on the others: 'dmesg | grep -i xid' there, and 'dcgmi diag -r 3' tests the GPU",
        "warning",
    ),
    Rule(
        "bench-slow",
        speeds,
        "slower",
        "speed",
        "'nvidia-smi -q -d CLOCK,PERFORMANCE,POWER' there, during '--bench', shows what slows it; "
        "'dcgmi diag -r 3' tests it",
        "warning",
    ),
    Rule(
        "bench-unlike",
        speeds,
        "unlike",
        "speed",
        "measure again with more of the same model: those that agree show which one is slow",
        "warning",
    ),
)
