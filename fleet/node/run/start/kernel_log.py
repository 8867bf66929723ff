"""Reads what the kernel has logged since a run began, such as processes killed out of memory, and lost GPUs."""

import os
import re
from contextlib import suppress

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.processes import read_file
from fleet.node.base.run_folder import rank_records, read_json
from fleet.node.base.types import Any, Iterable, Iterator, run
from fleet.protocol.state import SPEC

KMSG = "/dev/kmsg"
# programs for the case that /dev/kmsg cannot be opened, as in a container
READERS = (["dmesg"], ["journalctl", "-k", "-b", "-q", "-n", "5000", "--no-pager", "-o", "short-monotonic"])
READER_SECONDS = 2.0
MOST_RECORDS = 1 << 16  # a limit, as new records may come while this reads; the kernel keeps fewer
MAX_LINES, MAX_LENGTH = 5, 300  # lines that are reported; characters of a line
DRIFT = 1e-4  # how much the kernel log's clock may drift from the monotonic clock: seconds per second since boot
# the patterns are compiled on use, as a run without a failure needs none of them
WORTH = (
    r"Killed process \d|NVRM: |SXid|amdgpu .*(?:reset|timeout|uncorrect)|[Hh]ardware [Ee]rror|Uncorrect|"
    r"segfault at|general protection|traps: |I/O error|(?:EXT4-fs|BTRFS).*error|XFS .*(?:[Cc]orrupt|[Ss]hut)|"
    r"[Rr]emounting filesystem read-only|nfs: server .* not responding"
)
# with MIG, the instance follows the address: "(PCI:0000:01:00 GPU-I:05)"
XID = r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{1,20})(?: [^)]{0,40})?\): (\d{1,4})\b"
RECOVERED = r"\): 154\b.* to 0x0 \(None\)"  # logged after a reset: earlier errors no longer count
MOST_XIDS = 64
_PID = r"Killed process (\d+)|\[(\d+)\]: segfault|\bpid=(\d+)"
_RECORD = r"\d+,\d+,(\d+),[^;]*;(.*)"
_LINE = r"\[ *(\d+\.\d+)\] ?(.*)"


class KernelLog:
    """Reads the kernel log. since: monotonic seconds: earlier lines are ignored; None: now."""

    def __init__(self, since: "float | None" = None, clock: Clock = CLOCK, kmsg: str = KMSG) -> None:
        self.clock = clock
        self.since = clock.monotonic() if since is None else since
        self.kills = oom_kills()
        self.fd: int | None = None
        with suppress(OSError):
            self.fd = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if since is None:
                os.lseek(self.fd, 0, os.SEEK_END)

    def relevant_lines(self, folder: str, began: "float | None") -> "list[run.KernelLine] | None":
        """Returns the last lines that may show why ranks of this node ended, or None if the log cannot be read. began:
        when ranks got SIGTERM because the head stopped the run; None if the head did not stop it."""
        records = rank_records(folder)
        own = began is None or any(failed(record) and record.get("time", began) < began for record in records)
        lines = self._lines() if self.fd is not None or own else None
        found = [
            (stamp, text[:MAX_LENGTH])
            for stamp, text in lines or ()
            if re.search(WORTH, text) and stamp >= self.since * (1 - DRIFT) - 1
        ]
        now = self.clock.time() - self.clock.monotonic()
        ranks = {record["pid"]: record.get("rank") for record in records if record.get("pid")}
        if read_json(os.path.join(folder, SPEC)).get("container"):
            ranks = {}  # these pids may be those of the container's own pid namespace
        reported: list[run.KernelLine] = [
            {"text": text, "time": now + stamp, "rank": ranks.get(pid_in(text))} for stamp, text in found[-MAX_LINES:]
        ]
        more = oom_kills() - self.kills
        if more > 0 and not any("Killed process" in line["text"] for line in reported):
            text = "oom_kill %d in memory.events of the cgroup" % more  # in a container nothing else is visible
            reported.append({"text": text, "time": self.clock.time(), "rank": None})
        return None if lines is None and not reported else reported

    def xids(self) -> "list[dict[str, Any]] | None":
        """Returns the Xid errors (of NVIDIA's driver) since boot, except those of a GPU before its reset. There is one
        entry for each GPU and error number, with the count of such errors and the seconds since the last one. Returns
        None if the log cannot be read."""
        lines = self._lines()
        found: dict[Any, dict[str, Any]] = {}
        for stamp, text in lines or ():
            xid = re.search(XID, text)
            if xid and re.search(RECOVERED, text):
                found = {key: each for key, each in found.items() if each["bus"] != xid.group(1)}
            elif xid:
                count = found.pop(xid.groups(), {"count": 0})["count"] + 1
                ago = max(0.0, round(self.clock.monotonic() - stamp))
                found[xid.groups()] = {
                    "bus": xid.group(1),
                    "xid": int(xid.group(2)),
                    "count": count,
                    "ago": ago,
                    "text": text[:MAX_LENGTH],
                }
        return None if lines is None else list(found.values())[-MOST_XIDS:]

    def _lines(self) -> "Iterable[tuple[float, str]] | None":
        return self._records() if self.fd is not None else self._by_program()

    def _records(self) -> "Iterator[tuple[float, str]]":
        assert self.fd is not None
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(self.fd, 8192).decode("utf-8", "replace")
            except BrokenPipeError:  # the kernel dropped the oldest records: continue
                continue
            except OSError:
                return
            found = re.match(_RECORD, record)
            if found is None:
                return  # in a container, /dev/kmsg may be another file, such as /dev/null
            yield int(found.group(1)) / 1e6, found.group(2)

    def _by_program(self) -> "list[tuple[float, str]] | None":
        import subprocess  # here, as a run that ends well does not need it

        for argv in READERS:
            try:
                done = subprocess.run(
                    argv,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    timeout=READER_SECONDS,
                    env=dict(os.environ, LC_ALL="C"),
                )
            except (OSError, subprocess.SubprocessError):
                continue
            if done.returncode == 0:
                lines = [re.match(_LINE, line) for line in done.stdout.decode("utf-8", "replace").splitlines()]
                return [(float(line.group(1)), line.group(2)) for line in lines if line]
        return None


def pid_in(text: str) -> int:
    found = re.search(_PID, text)
    return int(next(filter(None, found.groups()))) if found else 0


def failed(record: "dict[str, Any]") -> bool:
    return bool(record.get("status")) or record.get("signal") is not None


def oom_kills() -> int:
    """Returns how many processes in this cgroup and in the cgroups below it were killed out of memory so far."""
    for line in read_file("/proc/self/cgroup").decode("utf-8", "replace").splitlines():
        _, controllers, path = line.split(":", 2)
        name = {"": "memory.events", "memory": "memory/memory.oom_control"}.get(controllers)
        if name is None:
            continue
        controller, _, file = name.rpartition("/")
        for inside in (path, ""):  # in a container, the path may be that of the host
            text = read_file(os.path.join("/sys/fs/cgroup", controller) + inside + "/" + file)
            found = re.search(rb"^oom_kill (\d+)", text, re.M)
            if found:
                return int(found.group(1))
    return 0
