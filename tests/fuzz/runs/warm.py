"""What every fleet command does once more, and a fork of one that has done it need not: imported last by a forge."""

from __future__ import annotations

import gc

from fleet.transport import TRANSPORTS
from fleet.transport.program import read_all, shipped

PROGRAMS = ["preflight.probe", "run.supervise run.follow", "run.list_runs run.follow", "run.list_runs", "run.follow"]
PROGRAMS += ["run.stop", "run.stop run.follow", "run.ready"]

assert "fuzz" in TRANSPORTS.names
read_all()
for name in PROGRAMS:
    shipped(name)
gc.collect()
gc.freeze()
