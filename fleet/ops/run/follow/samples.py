"""Reads a run's samples while it is followed. Computes the mean use of each host, and finds the host that the others
wait for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf, isnan

from fleet.answers.run_events import SlowHost
from fleet.answers.runs import HostUse, Slow
from fleet.node.base.clock import Clock
from fleet.node.gang.gang import Gang
from fleet.ops.run.kept.documents import whole_lines
from fleet.ops.run.kept.metrics import MOST_LINE, sample_of
from fleet.ops.run.kept.record import RunRecord
from fleet.own import open_own
from fleet.protocol.state import METRICS
from fleet.rules.slow_host import Point, mean, middle, point_of, slow_host

LOOK_SECONDS = 5.0
MOST_BEFORE = 1 << 20  # bytes of a host's samples that were here before this process followed the run
LAST, MOST_KEPT = 6, 360  # numbers of samples that decide on a slow host: while the run goes on; at its end


class Samples:
    """Holds the samples of a run's hosts. notify: Run.notify() of launch/loop.py."""

    def __init__(self, record: RunRecord, gang: Gang, notify: Callable[..., None], clock: Clock) -> None:
        self._record, self._gang, self._notify, self._clock = record, gang, notify, clock
        self._taken = {host.name: deque[Point](maxlen=MOST_KEPT) for host in record.hosts}
        self._offsets = dict[str, tuple[int, int]]()  # host -> (the file's inode, the offset up to which it was read)
        self._due, self._began = 0.0, clock.time()
        self._named = set[str]()

    def look(self) -> None:
        """Reports a slow host once, as soon as it is certain. It is called at every turn of the loop."""
        if (now := self._clock.monotonic()) < self._due:
            return
        self._due = now + LOOK_SECONDS
        fresh = [self._read(host) for host in self._taken]
        if any(fresh) and (slow := self.slow(LAST, self._began)) is not None and slow.where not in self._named:
            self._named.add(slow.where)
            text = f"{slow.where} is slow, and the others wait for it: {slow.evidence}"
            self._notify("warning", text, SlowHost(hosts=slow.hosts, evidence=slow.evidence))

    def slow(self, last: int = MOST_KEPT, since: float = -inf) -> Slow | None:
        """Returns the host, or part of one, that the others wait for, or None. Only hosts that are not lost count.
        last: how many samples of each host count. since: seconds since the epoch; earlier samples do not count."""
        nodes = {host: node for host, node in self._gang.nodes.items() if host in self._taken and node.lost is None}
        found = dict[str, list[Point]]()
        for host, node in nodes.items():
            each = [it._replace(time=node.clock.here(it.time)) for it in list(self._taken[host])[-last:]]
            found[host] = [it for it in each if it.time >= since]
        return slow_host(found)

    def used(self) -> dict[str, HostUse]:
        """Returns the mean use of each host that has sent samples. It is the mean of the last MOST_KEPT samples,
        usually an hour."""
        found = {}
        for host, taken in self._taken.items():
            self._read(host)
            if taken:
                means = middle(taken, mean)
                use, power, cpu = (None if isnan(means[it]) else round(means[it], 1) for it in ("use", "power", "cpu"))
                found[host] = HostUse(len(taken), use, power, cpu)
        return found

    def _read(self, host: str) -> bool:
        """Reads the new samples in a host's file, and returns whether there were any. If another file is in its place,
        as after a restart of the host, reads all of that file."""
        fresh = False
        with suppress(OSError), open_own(self._record.logs / host / METRICS) as file:
            found = os.fstat(file.fileno())
            number, offset = self._offsets.get(host, (found.st_ino, max(0, found.st_size - MOST_BEFORE)))
            if number != found.st_ino or offset > found.st_size:
                self._taken[host].clear()
                offset = 0
            file.seek(offset)
            ranks = self._record.node(host).local_world_size
            for sample in filter(None, map(sample_of, whole_lines(file, MOST_LINE))):
                self._taken[host].append(point_of(sample, self._record.run_id, ranks))
            fresh, self._offsets[host] = file.tell() > offset, (found.st_ino, file.tell())
        return fresh
