"""Reads metrics.jsonl of a host in a run's folder: what was measured there every few seconds. Other programs may have
changed such a file, and it may be large: what it means is bounded, whatever it holds."""

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

POINTS = 300  # of a plot, at most
WHOLE_BYTES, SAMPLES = 1 << 20, 4000  # a larger file is read at so many places
MOST_LINE = 1 << 17
Point = Mapping[str, float]  # "time", and of these what is known
# name -> how two points of it become one
KINDS: dict[str, Fold] = {
    **dict.fromkeys(("time", "cpu", "use", "power", "received", "sent"), mean),
    **dict.fromkeys(("memory", "temperature", "highest"), max),
    "lowest": min,
}
# name -> how the values of one moment become one: GPUs and networks have sums
AT_ONCE: dict[str, Fold] = {**KINDS, **dict.fromkeys(("power", "received", "sent"), sum)}


def read_metrics(path: Path, since: float, until: float) -> tuple[list[Point], int]:
    """Returns (the points of a file in their order, POINTS at most; how many of its samples are of another time)."""
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
    """Returns the sample of a line, None of what is none: cut off, or not of fleet's."""
    with suppress(ValueError, RecursionError):
        return decode(Sample, json.loads(line))
    return None


def means(points: Sequence[Point]) -> Point:
    """Returns the mean of each value, or the most, or the least, as KINDS has it."""
    return _known({name: [point.get(name) for point in points] for name in KINDS}, KINDS)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    size = os.fstat(file.fileno()).st_size
    if size <= WHOLE_BYTES:
        yield from iter(lambda: file.readline(MOST_LINE), b"")
        return
    last = -1
    for at in range(SAMPLES):
        file.seek(size * at // SAMPLES)
        file.readline(MOST_LINE)  # the rest of one
        if (begins := file.tell()) > last:  # else it was read already
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
    """Returns of each name what its known values come to; names without any are left out."""
    found = {name: folded(kinds[name], each) for name, each in values.items()}
    return {name: value for name, value in found.items() if not isnan(value)}
