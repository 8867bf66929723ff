"""Writes samples of what a run's node does into the run's folder, in a process of its own: a GPU's driver that hangs
holds up no supervisor."""

import os
import signal
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.files import append_whole
from fleet.node.base.processes import forked
from fleet.node.base.run_folder import note
from fleet.node.base.types import run_specs
from fleet.node.run.sample import Sampler
from fleet.node.run.start.engine import PR_SET_NAME, PR_SET_PDEATHSIG, prctl
from fleet.protocol.codes import FOR_RANKS
from fleet.protocol.state import METRICS

HALVE_BYTES = 4 << 20  # after each so many, samples are half as many: a run of three months has 32 MiB
ENDING_SECONDS, LOOK_SECONDS = 1.0, 1.0


class Metrics:
    """Begins the process, whose number is `pid`; 0 once it is gone, or where the run has no samples: no run fails for
    want of these."""

    def __init__(self, spec: "run_specs.Starting", folder: str) -> None:
        self.pid, every, parent = 0, spec.get("sample") or 0.0, os.getpid()
        if every <= 0:
            return

        def work() -> None:
            stand_alone(parent)
            keep(Sampler(spec["run"]), os.path.join(folder, METRICS), every)

        try:
            self.pid = forked(work)
        except OSError as error:
            note(folder, "no samples are taken: %s" % error)

    def end(self) -> None:
        """Ends it, so that nothing comes after the run's end is on record. What a driver holds in the kernel writes
        nothing more either, and is not waited for."""
        until = CLOCK.monotonic() + ENDING_SECONDS
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        while self.pid and os.waitpid(self.pid, os.WNOHANG)[0] == 0 and CLOCK.monotonic() < until:
            CLOCK.sleep(0.005)
        self.pid = 0


def stand_alone(parent: int) -> None:
    """Keeps nothing of the supervisor's open, neither its locks nor its signals, and lives no longer than it."""
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, *FOR_RANKS):
        signal.signal(signum, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_NAME, b"fleet-sampler")
    os.closerange(3, 1 << 16)
    if os.getppid() != parent:
        os._exit(1)


def keep(sampler: Sampler, path: str, every: float, clock: Clock = CLOCK) -> None:
    """Writes a line for each sample, as long as the run's folder is there; a disk that is full takes none. What cannot
    be sampled is noted once, in the node's log, and tried again."""
    size, noted, folder = 0, False, os.path.dirname(path)
    while os.path.isdir(folder):
        until = clock.monotonic() + every * 2 ** (size // HALVE_BYTES)
        try:
            while clock.monotonic() < until:
                clock.sleep(min(LOOK_SECONDS, max(0.0, until - clock.monotonic())))
                sampler.look()
            line = json.dumps(sampler.sample()).encode() + b"\n"
        except Exception as error:  # whatever a kernel or a driver shows
            if not noted:
                note(folder, "no sample was taken: %r" % error)
            noted = True
            clock.sleep(max(0.0, until - clock.monotonic()))
            continue
        with suppress(OSError):
            size += len(line) if append_whole(path, line) else 0
