"""Builds the table of facts: a row for each fact, a column for hosts with the same values. Pure; cli draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.inventory.nodeset import fold
from fleet.rules.judge import groups, has_majority
from fleet.rules.rule import MISSING, GiB, View, lookup
from fleet.rules.units import seconds, size

ABSENT = "-"  # a host does not have it
UNKNOWN = "?"  # the host did not report it


@dataclass(frozen=True)
class Cell:
    """Holds a cell. deviates: most other hosts have another value."""

    text: str
    deviates: bool = False


@dataclass(frozen=True)
class Matrix:
    """Holds the table. titles: the titles of the columns after the fact's name. rows: (fact, cells), as many cells as
    titles."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def matrix(views: Mapping[str, View], max_columns: int) -> Matrix:
    """Returns the table of these hosts (name -> view).

    If hosts differ in more ways than fit, it has two columns instead: the most frequent value, and the hosts with other
    values.
    """
    # a newline in a node's text must not look like another row
    texts = {name: {label: " ".join(show(view).split()) for label, show in ROWS} for name, view in views.items()}
    columns = [names for _, names in groups({name: tuple(row.values()) for name, row in texts.items()})]
    fits = len(columns) <= max_columns
    rows = [
        (label, _cells({name: texts[name][label] for name in texts}, columns if fits else None)) for label, _ in ROWS
    ]
    for label, path, form in SPANS:
        spans = [_span(views, names, path, form) for names in (columns if fits else [list(views)])]
        rows.append((label, tuple(map(Cell, spans if fits else [*spans, ""]))))
    titles = [f"{fold(names)} ({len(names)})" if len(names) > 1 else names[0] for names in columns]
    return Matrix(
        tuple(titles) if fits else (f"most of {len(views)} hosts", "others"),
        tuple(row for row in rows if any(cell.text not in (ABSENT, "") for cell in row[1])),
    )


def _cells(texts: Mapping[str, str], columns: Sequence[list[str]] | None) -> tuple[Cell, ...]:
    """Returns the cells of a fact: one for each column of hosts; without columns, the most frequent value and the
    others."""
    shared = groups(texts)
    usual = shared[0][0] if has_majority(shared) else None
    if columns is not None:
        return tuple(Cell(texts[names[0]], texts[names[0]] != usual) for names in columns)
    rest = "\n".join(f"{fold(names)}: {text}" for text, names in shared[1:])
    return Cell(shared[0][0], usual is None), Cell(rest, bool(rest))


def _span(views: Mapping[str, View], names: list[str], path: str, form: Callable[[float], str]) -> str:
    """Returns the smallest and the largest value of a fact that differs from host to host."""
    values = [value for value in (lookup(views[name], path) for name in names) if isinstance(value, int | float)]
    if not values:
        return ABSENT
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} .. {high}"


def _fact(path: str, form: Callable[[Any], str] = str) -> Callable[[View], str]:
    def show(view: View) -> str:
        value = lookup(view, path)
        return UNKNOWN if value is MISSING else ABSENT if value is None or value == "" else form(value)

    return show


def _python(view: View) -> str:
    if lookup(view, "python_error") not in (MISSING, None):
        return "missing"
    path = lookup(view, "python.path")
    return UNKNOWN if path is MISSING else f"{lookup(view, 'python.version')} {path}"


def _torch(view: View) -> str:
    version = _fact("torch.version")(view)
    build = _fact("torch_build")(view)
    nccl = lookup(view, "torch.nccl")
    return version if build == UNKNOWN else f"{version} ({build}{f', NCCL {nccl}' if isinstance(nccl, str) else ''})"


def _gpus(view: View) -> str:
    if lookup(view, "gpu_error"):
        return "unusable" if lookup(view, "gpu_error") is not MISSING else UNKNOWN
    count = lookup(view, "gpu.count")
    if count is MISSING:
        return UNKNOWN
    return f"{count} x {lookup(view, 'gpu.model')}" if count else ABSENT


def _link(view: View) -> str:
    name, speed, mtu = (lookup(view, f"link.{part}") for part in ("name", "speed", "mtu"))
    if not isinstance(name, str):
        return ABSENT
    return f"{name}{f', {speed} Mbit/s' if isinstance(speed, int) else ''}, mtu {mtu}"


def _offset(s: float) -> str:
    # a smaller offset is within the error of a round trip
    if abs(s) < 0.005:
        return "0.00 s"
    return f"{s:+.2f} s" if abs(s) < 100 else ("-" if s < 0 else "+") + seconds(abs(s))


ROWS: tuple[tuple[str, Callable[[View], str]], ...] = (
    ("system", _fact("os")),
    ("kernel", _fact("kernel")),
    ("architecture", _fact("arch")),
    ("glibc", _fact("glibc")),
    ("CPUs", lambda view: f"{_fact('cpu.usable')(view)} x {_fact('cpu.model')(view)}"),
    # rounded: no two machines have the same number of bytes
    ("memory", _fact("memory.total", lambda total: f"{round(total / GiB)} GiB")),
    ("python", _python),
    ("torch", _torch),
    ("deepspeed", _fact("deepspeed.version")),
    ("compiled ops", lambda view: ABSENT if view.get("deepspeed", MISSING) is None else _fact("deepspeed_ops")(view)),
    ("accelerate", _fact("versions.accelerate")),
    ("transformers", _fact("versions.transformers")),
    ("numpy", _fact("versions.numpy")),
    ("GPUs", _gpus),
    ("NVIDIA driver", _fact("driver")),
    ("CUDA toolkit", _fact("cuda_toolkit")),
    ("system NCCL", _fact("nccl_library")),
    ("gcc", _fact("compilers.gcc")),
    ("ninja", _fact("compilers.ninja")),
    ("network link", _link),
    ("InfiniBand ports", _fact("infiniband_ports", lambda n: str(n) if n else ABSENT)),
    ("open files", _fact("limits.nofile")),
)

# facts that differ on every host: shown as a range
SPANS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("memory available", "memory.available", size),
    ("free in workdir", "disks.workdir.free", size),
    ("free in home", "disks.home.free", size),
    ("free in /tmp", "disks.tmp.free", size),
    ("/dev/shm", "disks.shm.total", size),
    ("clock offset", "clock.offset", _offset),
)
