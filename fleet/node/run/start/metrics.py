"""Writes samples of a run's node into the run's folder. It is a separate process, so that a GPU driver that hangs does
not delay the supervisor."""

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

HALVE_BYTES = 4 << 20  # after each 4 MiB the time between samples doubles: a run of three months has 32 MiB
ENDING_SECONDS, LOOK_SECONDS = 1.0, 1.0


class Metrics:
    """Starts the process that samples. pid: its pid; 0 if it is gone, or if the run has no samples. If the process
    cannot be started, the run goes on without samples."""

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
        """Kills the process, so that no sample follows the recorded end of the run. Waits for its end, but at most a
        second: a process that hangs in a driver writes nothing more."""
        until = CLOCK.monotonic() + ENDING_SECONDS
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        while self.pid and os.waitpid(self.pid, os.WNOHANG)[0] == 0 and CLOCK.monotonic() < until:
            CLOCK.sleep(0.005)
        self.pid = 0


def stand_alone(parent: int) -> None:
    """Separates this process from the supervisor: closes its files and locks, and resets its signals. The process ends
    with the supervisor."""
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, *FOR_RANKS):
        signal.signal(signum, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_NAME, b"fleet-sampler")
    os.closerange(3, 1 << 16)
    if os.getppid() != parent:
        os._exit(1)


def keep(sampler: Sampler, path: str, every: float, clock: Clock = CLOCK) -> None:
    """Writes a line for each sample while the run's folder exists. A full disk loses samples. If sampling fails, tries
    again, and writes the first error to the node's log."""
    size, noted, folder = 0, False, os.path.dirname(path)
    while os.path.isdir(folder):
        until = clock.monotonic() + every * 2 ** (size // HALVE_BYTES)
        try:
            while clock.monotonic() < until:
                clock.sleep(min(LOOK_SECONDS, max(0.0, until - clock.monotonic())))
                sampler.look()
            line = json.dumps(sampler.sample()).encode() + b"\n"
        except Exception as error:  # a kernel or a driver may show anything
            if not noted:
                note(folder, "no sample was taken: %r" % error)
            noted = True
            clock.sleep(max(0.0, until - clock.monotonic()))
            continue
        with suppress(OSError):
            size += len(line) if append_whole(path, line) else 0
