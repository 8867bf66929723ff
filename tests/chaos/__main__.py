"""`make chaos`: faults of every kind, played in a lab, each with what was expected of it and what was seen.

    python -m tests.chaos [--only NAME[,NAME...]] [--jobs N] [--list]

Prints a row a fault and exits 1 if any is not as expected. NAME is a part of a fault's name.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.chaos import (
    data_faults,
    exec_faults,
    head_faults,
    node_faults,
    preflight_faults,
    rank_faults,
    run_faults,
    ssh_faults,
    sync_faults,
)
from tests.chaos.ground import Ground, chaos_lab
from tests.chaos.table import HEADER, Fault, Row, line, play

MODULES = (
    rank_faults,
    node_faults,
    head_faults,
    run_faults,
    preflight_faults,
    sync_faults,
    data_faults,
    exec_faults,
    ssh_faults,
)
FAULTS: tuple[Fault, ...] = tuple(fault for module in MODULES for fault in module.FAULTS)


def play_all(faults: Sequence[Fault], jobs: int) -> list[Row]:
    """All of them, in so many labs at once; the rows are printed as they come."""
    waiting = deque(faults)
    rows: list[Row] = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done in as_completed([pool.submit(play_some, waiting, rows) for _ in range(jobs)]):
                done.result()
        except BaseException:
            waiting.clear()  # what is under way ends, and takes its lab down
            raise
    return rows


def play_some(waiting: deque[Fault], rows: list[Row]) -> None:
    """One lab for as long as it is well: a fault that breaks it, or leaves something, gets the next one a new one."""
    while waiting:
        with chaos_lab() as lab:
            well = True
            while well and waiting:
                fault = waiting.popleft()
                with tempfile.TemporaryDirectory(prefix="fleet-chaos.", ignore_cleanup_errors=True) as folder:
                    row = play(fault, Ground(lab, Path(folder)))
                rows.append(row)
                print(row, flush=True)
                well = not (fault.breaks or row.leftovers)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME", help="faults with this in their names, by comma")
    parser.add_argument("--jobs", type=int, default=4, help="labs at once; faults mostly wait [4]")
    parser.add_argument("--list", action="store_true", help="the faults' names")
    args = parser.parse_args()
    faults = [f for f in FAULTS if any(part in f.name for part in args.only.split(","))]
    if args.list or not faults:
        print("\n".join(fault.name for fault in FAULTS))
        return 0 if args.list else 2
    # ended politely, the lab is taken down as on Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the heads that it hangs up would ignore it, too
    print(line(HEADER), line("---" for _ in HEADER), sep="\n", flush=True)
    began = time.monotonic()
    rows = play_all(faults, min(args.jobs, len(faults)))
    odd = [row.fault.name for row in rows if not row.ok]
    print(
        f"\n{len(rows)} faults in {time.monotonic() - began:.0f} s: "
        + (f"not as expected: {', '.join(odd)}" if odd else "all as expected")
    )
    return 1 if odd else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
