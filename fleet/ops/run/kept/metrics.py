"""Reads a host's metrics.jsonl in a run's folder, which has a sample every few seconds. Other programs may have changed
such a file, and it may be large. So the time and memory for reading it are bounded, whatever it holds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import BinaryIO

from fleet.codec import decode
from fleet.own import open_own
from fleet.protocol.messages.samples import Sample
from fleet.rules.slow_host import Fold, folded, mean

POINTS = 300  # the most points of a plot
WHOLE_BYTES, SAMPLES = 1 << 20, 4000  # of a larger file, only so many samples are read
MOST_LINE = 1 << 17
Point = Mapping[str, float]  # "time", and those names of KINDS whose values are known
# name -> how the values of several points become one
KINDS: dict[str, Fold] = {
    **dict.fromkeys(("time", "cpu", "use", "power", "received", "sent"), mean),
    **dict.fromkeys(("memory", "temperature", "highest"), max),
    "lowest": min,
}
# name -> how the values of several devices at one moment become one: some are summed
AT_ONCE: dict[str, Fold] = {**KINDS, **dict.fromkeys(("power", "received", "sent"), sum)}


def read_metrics(path: Path, since: float, until: float) -> tuple[list[Point], int]:
    """Returns (at most POINTS points of a file, in the order of time; the number of its samples before `since` or after
    `until`). Both are in seconds since the epoch."""
    found: list[Point] = []
    odd = 0
    with suppress(OSError), open_own(path) as file:
        for sample in filter(None, map(sample_of, _lines(file))):
            if since <= sample["time"] <= until:
                found.append(_point(sample))
            else:
                odd += 1
    found.sort(key=lambda point: point["time"])
    each = -(-len(found) // POINTS)
    return [means(found[at : at + each]) for at in range(0, len(found), each or 1)], odd


def sample_of(line: bytes) -> Sample | None:
    """Returns the sample of a line; None if the line is cut off, or not one of fleet's."""
    with suppress(ValueError, RecursionError):
        return decode(Sample, json.loads(line))
    return None


def means(points: Sequence[Point]) -> Point:
    """Returns one point for several: of each value the mean, the maximum or the minimum, as KINDS defines it."""
    return _known({name: [point.get(name) for point in points] for name in KINDS}, KINDS)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    size = os.fstat(file.fileno()).st_size
    if size <= WHOLE_BYTES:
        yield from iter(lambda: file.readline(MOST_LINE), b"")
        return
    last = -1
    for at in range(SAMPLES):
        file.seek(size * at // SAMPLES)
        file.readline(MOST_LINE)  # skips the rest of a line
        if (begins := file.tell()) > last:  # otherwise that line was read already
            last = begins
            yield file.readline(MOST_LINE)


def _point(sample: Sample) -> Point:
    rates = [*sample["net"].values(), *sample["ib"].values()]
    use, temperature, power = ([gpu[name] for gpu in sample["gpus"]] for name in ("use", "temperature", "power"))
    values: dict[str, Sequence[float | None]] = {
        "time": [sample["time"]],
        "cpu": [sample["cpu"]],
        "memory": [sample["memory"]],
        "use": use,
        "lowest": use,
        "highest": use,
        "temperature": temperature,
        "power": power,
        "received": [each[0] for each in rates],
        "sent": [each[1] for each in rates],
    }
    return _known(values, AT_ONCE)


def _known(values: Mapping[str, Sequence[float | None]], kinds: Mapping[str, Fold]) -> Point:
    """Returns one value for each name, which `kinds` makes of the known values. Leaves out names without known
    values."""
    found = {name: folded(kinds[name], each) for name, each in values.items()}
    return {name: value for name, value in found.items() if not isnan(value)}
