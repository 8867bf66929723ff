"""Samples the use of a node's GPUs, network, InfiniBand, load, CPUs and memory. As a program, it sends samples until
the head is gone. The supervisor of a run writes samples into the run's folder.

spec: {"every": seconds between two, "count": how many, 0: no end}. Sends J {"event": "sample", ...}: see Sample in
fleet/protocol/messages/samples.py; then X 0.
"""

import os
from contextlib import suppress

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.processes import environment, names_in, open_files, read_file
from fleet.node.base.types import Any
from fleet.node.base.wire import listen, send_exit, send_json, start, start_heartbeat
from fleet.node.facts.nvml import Nvml
from fleet.node.run.marks import marked
from fleet.node.run.neighbours import others
from fleet.protocol.state import RUN_MARK, is_run_id

ESTABLISHED = "01"
WAITING_BYTES = 1 << 15  # with so many bytes to send, or to read, data waits on a connection
MOST_LINKS, MOST_PEERS, MOST_RUNS = 64, 64, 20  # network interfaces; pairs of addresses; runs in a sample
MOST_BYTES = 4 << 20  # of a table of connections
NAN = float("nan")  # an unknown counter, which has no rate
HEARTBEAT_SECONDS = 5.0  # longer than usual, because samples show, too, that the node is alive


class Rates:
    """Computes how fast counters grow."""

    def __init__(self) -> None:
        self.before: dict[Any, float] = {}
        self.then = 0.0

    def of(self, values: "dict[Any, float]", now: float) -> "dict[Any, float | None]":
        """Returns the rates since the last call. The rate of a counter that is new, or was reset, is None."""
        seconds, before = now - self.then, self.before
        self.before, self.then = values, now
        known = {key for key, value in values.items() if seconds > 0 and key in before and value >= before[key]}
        return {key: (value - before[key]) / seconds if key in known else None for key, value in values.items()}


class Sampler:
    """Takes samples. run: if it is set, samples have the CPU time and connections of this run's processes, too. root:
    the folder that has proc and sys. waited: (own address, other address) -> how many calls of look() found data that
    waits [to be sent, to be read]. looks: the number of these calls. cut: a table of connections was too long."""

    def __init__(self, run: "str | None" = None, clock: Clock = CLOCK, root: str = "/") -> None:
        self.run, self.clock, self.root, self.nvml = run, clock, root, Nvml()
        self.rates, self.threads = Rates(), Rates()
        self.waited: dict[tuple[str, str], list[int]] = {}
        self.looks, self.cut = 0, False
        self.sockets: set[str] = set()
        with suppress(OSError, ValueError, LookupError):  # the next sample raises the same error
            self.sample()

    def read(self, path: str, most: int = 1 << 20) -> str:
        return read_file(self.root + path, most).decode("ascii", "replace")

    def sample(self) -> "dict[str, Any]":
        """Returns a sample of the node. Its rates are averages since the last call."""
        # the later columns, of guests, are part of "user"
        ticks = [int(each) for each in self.read("proc/stat").partition("\n")[0].split()[1:9]]
        counters: dict[Any, float] = {"busy": sum(ticks) - sum(ticks[3:5]), "all": sum(ticks)} if ticks else {}
        counters.update(self.links())
        rates = self.rates.of(counters, self.clock.monotonic())
        busy, every = rates.pop("busy", None), rates.pop("all", None)
        memory = dict(line.split()[:2] for line in self.read("proc/meminfo").splitlines())
        total, available = (
            int(memory[name]) << 10 if name in memory else None for name in ("MemTotal:", "MemAvailable:")
        )
        load = self.read("proc/loadavg").split()
        found: dict[str, Any] = {
            "time": round(self.clock.time(), 3),
            "cpu": round(100 * busy / every, 1) if busy is not None and every else None,
            "load": float(load[0]) if load else None,
            "memory": None if total is None or available is None else total - available,
            "memory_total": total,
            "net": {},
            "ib": {},
            "gpus": [self.gpu(index) for index in range(self.nvml.count)],
        }
        for (kind, name, way), rate in rates.items():
            found[kind].setdefault(name, [None, None])[way] = None if rate is None else round(rate)
        if self.run is not None:
            found["run_cpu"], found["run_delay"] = self.of_run(self.run)
            self.look()
            waited = sorted(self.waited.items(), key=lambda item: -max(item[1]))
            cut = self.cut or any(max(counts) for _, counts in waited[MOST_PEERS:])
            shares = [(*pair, *(round(count / self.looks, 2) for count in counts)) for pair, counts in waited]
            found["waiting"] = None if cut else shares[:MOST_PEERS]
            self.waited, self.looks, self.cut = {}, 0, False
        return found

    def gpu(self, index: int) -> "dict[str, Any]":
        found = self.nvml.gpu(index)
        pids = found.pop("pids")
        shown = [environment(pid) for pid in pids or ()]  # empty for a hidden process, or one of another container
        runs = [it.get(RUN_MARK.encode(), b"").decode("ascii", "replace") for it in shown]
        ours = set(filter(is_run_id, runs))
        known = pids is not None and all(shown)
        return dict(found, runs=sorted(ours), others=sum(run not in ours for run in runs) if known else None)

    def links(self) -> "dict[Any, float]":
        """Returns {(kind, name, way): bytes so far}. kind: "net" or "ib". way: 0 for received bytes, 1 for sent bytes.
        "net" has each network interface with hardware, or each interface if none has hardware, as in a container. "ib"
        has each InfiniBand adapter, as the sum of its ports. The kernel counts InfiniBand in units of 4 bytes."""
        lines = dict(line.partition(":")[::2] for line in self.read("proc/net/dev").splitlines()[2:])
        counters = {name.strip(): line.split() for name, line in lines.items() if name.strip() != "lo"}
        there = [name for name in counters if os.path.exists(self.root + "sys/class/net/%s/device" % name)]
        names = sorted(there or counters)[:MOST_LINKS]
        found: dict[Any, float] = {("net", name, way): int(counters[name][8 * way]) for name in names for way in (0, 1)}
        folder = "sys/class/infiniband/"
        for name in sorted(names_in(self.root + folder))[:MOST_LINKS]:
            for port in names_in(self.root + folder + name + "/ports"):
                for way, counter in enumerate(("port_rcv_data", "port_xmit_data")):
                    text = self.read("%s%s/ports/%s/counters/%s" % (folder, name, port, counter)).strip()
                    key = ("ib", name, way)
                    found[key] = found.get(key, 0) + (4 * int(text) if text.isdigit() else NAN)
        return found

    def of_run(self, run: str) -> "tuple[float | None, float | None]":
        """Returns (the number of CPUs that the run's threads used, the number of CPUs for which they waited), on
        average since the last call. The second is large if there are too few CPUs for the threads. Returns (None, None)
        if the kernel does not count this."""
        spent: dict[Any, float] = {}
        self.sockets = set()
        for pid in marked(run):
            links = (link for _, link in open_files(pid))
            self.sockets.update(link[8:-1] for link in links if link.startswith("socket:["))
            for thread in names_in("/proc/%d/task" % pid):
                numbers = self.read("proc/%d/task/%s/schedstat" % (pid, thread)).split()[:2]
                spent.update({(thread, kind): int(number) / 1e9 for kind, number in enumerate(numbers)})
        rates = self.threads.of(spent, self.clock.monotonic()).items()
        had, lacked = (round(sum(rate or 0.0 for key, rate in rates if key[1] == kind), 3) for kind in (0, 1))
        return (had, lacked) if any(spent.values()) else (None, None)

    def look(self) -> None:
        """Adds to `waited` the connections of the run's processes on which data waits now, either to be sent or
        acknowledged, or to be read."""
        self.looks += 1
        waits: dict[tuple[str, str], list[bool]] = {}
        for path in ("proc/net/tcp", "proc/net/tcp6"):
            text = self.read(path, MOST_BYTES)
            self.cut = self.cut or len(text) >= MOST_BYTES
            for line in text.split("\n")[1:-1]:
                cells = line.split()
                if len(cells) < 10 or cells[3] != ESTABLISHED or cells[9] not in self.sockets:
                    continue
                one, other = (cell.partition(":")[0] for cell in cells[1:3])
                if one != other:
                    full = [int(size, 16) >= WAITING_BYTES for size in cells[4].split(":")]
                    waits[one, other] = [a or b for a, b in zip(full, waits.get((one, other), full))]
        for pair, full in waits.items():
            self.waited[pair] = [count + one for count, one in zip(self.waited.get(pair, [0, 0]), full)]


def main() -> None:
    spec = start(heartbeat=False)
    start_heartbeat(HEARTBEAT_SECONDS)
    listen(None, lambda: os._exit(0))
    sampler, sent = Sampler(), 0
    while sent < spec["count"] or not spec["count"]:
        CLOCK.sleep(spec["every"])
        runs = [it["run"] for it in others(None)][:MOST_RUNS]
        send_json(dict(sampler.sample(), event="sample", runs=runs))
        sent += 1
    send_exit(0)
