"""Dumps of torch's flight recorder as NCCL's process groups write them, made of a real one.

tests/golden/recorder/gloo0.pickle is a dump of rank 0 of 4, written by _dump_fr_trace() of torch 2.13.0+cpu, in the
format (2.10) that ProcessGroupNCCL writes to a file as well: three steps of an all_reduce of all and one of a group of
two, and a fourth that rank 3 does not come to. Paths in it are others of the same length. Of each entry the frames and
types here are those of that dump; the names, ranks, numbers, states and times are made, as NCCL has them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

REAL = Path(__file__).parent / "golden/recorder/gloo0.pickle"
Called = tuple[str, str, Sequence[Any], bool]  # process group, operation, shape, whether it is through


def dump_of(
    calls: Iterable[Called],
    groups: Mapping[str, Sequence[int]],
    *,
    written: float,
    forgotten: int = 0,
    waits: float = 90.0,
) -> dict[str, Any]:
    """A dump with these calls, the last of which was made `waits` seconds before it. forgotten: entries before."""
    real = pickle.loads(REAL.read_bytes())  # our own file
    entries, counts = [], dict.fromkeys(groups, 0)
    for number, (name, op, shape, through) in enumerate(calls):
        counts[name] += 1
        entries.append(
            {
                **real["entries"][-1],
                "record_id": number,
                "process_group": (name, "default_pg" if name == "0" else "undefined"),
                "profiling_name": f"nccl:{op}",
                "collective_seq_id": counts[name],
                "input_sizes": [list(shape)],
                "output_sizes": [list(shape)],
                "state": "completed" if through else "started",
                "time_created_ns": int((written - waits) * 1e9),
            }
        )
    config = {name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in groups.items()}
    return {**real, "pg_config": config, "entries": entries[forgotten:]}
