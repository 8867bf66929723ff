"""A lab that tests may break, and how it is healed: what a test changed is found first, and only that is mended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.lab import processes, switch
from fleet.node.base.processes import start_time, state_of
from tests.lab.virtual_lab import VirtualLab

# where tests leave files; what else they change on a host's disk is undone by switching the host off and on
SWEPT = ("/", "/root", "/home", "/opt", "/mnt", "/tmp", "/var/tmp", "/run", "/run/lock", "/dev/shm", "/etc/ssh")
LOGS = ("/var/log/lastlog", "/var/log/wtmp", "/var/log/btmp")
DISKS = ("/", "/run", "/dev/shm")
SSHD = "rm -f /run/sshd.pid; /usr/sbin/sshd -E /var/log/sshd.log; while [ ! -e /run/sshd.pid ]; do sleep 0.02; done"


@dataclass
class Baseline:
    """A host's state after `lab up`. listings: SWEPT folders' entries. usage: blocks and inodes of its DISKS."""

    pid: int
    sshd: int
    mounts: str
    network: str
    root_mode: int
    listings: dict[str, set[str]]
    usage: list[tuple[int, int]]


@dataclass
class Memory:
    """What is known of a lab from when it was whole. spoiled: hosts to switch off and on whatever they look like.
    keys: the enrolled head's ~/.ssh and records, and each host's ~/.ssh, as tar files."""

    baselines: dict[str, Baseline] = field(default_factory=dict)
    spoiled: set[str] = field(default_factory=set)
    keys: dict[str, bytes] = field(default_factory=dict)


@dataclass
class BreakableLab(VirtualLab):
    """A lab whose hosts a test may cut, freeze, kill, or change in any way; heal() brings all of it back."""

    memory: Memory = field(default_factory=Memory)
    whole: BreakableLab | None = None

    @classmethod
    def of(cls, lab: VirtualLab) -> BreakableLab:
        made = cls(**vars(lab))
        for name in made.names:
            made._remember(name)
        return made

    def first(self, count: int) -> BreakableLab:
        return replace(super().first(count), whole=self)

    def spoil(self, host: str) -> None:
        """Marks a host for which heal() cannot see what a test did to it."""
        self.memory.spoiled.add(host)

    def enrol(self) -> BreakableLab:
        """Does `setup-ssh` once, and after each heal() puts back the files that it made."""
        keys = self.memory.keys
        if self.enrolled:
            return self
        if self.whole:
            self.whole.enrol()
        elif not keys:
            super().enrol()
            line = ["tar", "-C", str(self.home), "-cf", "-", ".ssh", ".fleet/setup-ssh"]
            keys[""] = subprocess.run(line, capture_output=True, check=True, timeout=60).stdout
            for host in self.names:
                keys[host] = self.inside(host, "tar", "-C", "/root", "-cf", "-", ".ssh").stdout
        else:
            line = ["tar", "-C", str(self.home), "-xf", "-"]
            subprocess.run(line, input=keys[""], check=True, timeout=60)
            for host in self.names:
                self.inside(host, "tar", "-C", "/root", "-xf", "-", stdin=keys[host])
        self.enrolled = True
        return self

    def heal(self) -> None:
        """Brings hosts, cables and the head's home back to what they were after `lab up`: nobody has a ~/.ssh."""
        self.enrolled = False
        self._clear_home()
        state = json.loads((self.state_dir / "state.json").read_text())
        for name, machine in state["hosts"].items():
            up = processes.is_alive(machine["pid"], machine["started"])
            self.hosts[name] = {"address": machine["address"], "pid": machine["pid"], "up": up}
        limited = [n for n, m in state["hosts"].items() if self.hosts[n]["up"] and m["link"] not in (None, "none")]
        if limited:
            self.fleet("lab", "link", ",".join(limited), "none", check=True)
        broken = {name for name in self.names if not self._mended(name, state)} | self.memory.spoiled
        if broken:
            on = [name for name in broken if self.hosts[name]["up"]]
            if on:
                self.fleet("lab", "kill", *on, check=True)
            self.fleet("lab", "up", check=True)
            self.refresh()
            for name in broken:
                self._remember(name)
        self.memory.spoiled.clear()

    # -- one host -----------------------------------------------------------------------------------------
    def _mended(self, name: str, state: dict[str, object]) -> bool:
        """Whether what can be mended by itself was all that was wrong with the host."""
        was = self.memory.baselines[name]
        if self.hosts[name]["pid"] != was.pid or not self.hosts[name]["up"]:
            return False
        processes.thaw(was.pid)
        if self._file(name, "/sys/class/net/eth0/carrier") != "1\n":
            machine = state["hosts"][name]  # type: ignore[index]
            switch.set_cable(int(str(state["switch_pid"])), machine["number"], up=True)
        self._end_processes(name)
        if self._mounts(name) != was.mounts or self._network(name) != was.network:
            return False
        for key in (self.state_dir / "host_keys" / name).iterdir():
            if self._file(name, f"/etc/ssh/{key.name}") != key.read_text():
                self.inside(name, "sh", "-c", f"umask 077; cat >/etc/ssh/{key.name}", stdin=key.read_bytes())
        if not start_time(was.sshd):
            self.sh(name, SSHD)
            was.sshd = self._sshd(name)
        self._sweep(name)
        self._path(name, "/root").chmod(was.root_mode)
        for _ in range(50):  # processes that have just ended may hold files for a moment
            if self._usage(name) == was.usage:
                return True
            time.sleep(0.1)
        return False

    def _remember(self, name: str) -> None:
        """Takes the host's baseline, after what a test's use of it changes in any case was done once."""
        self.sh(name, "cd /root; mkdir -p .ssh .fleet .cache; touch /var/log/lastlog")
        self._clear_logs(name)
        self.sh(name, "cd /root; rmdir .ssh .fleet .cache 2>/dev/null; true")
        pid = int(self.hosts[name]["pid"])
        listings = {folder: set(os.listdir(self._path(name, folder))) for folder in SWEPT}
        self.memory.baselines[name] = Baseline(
            pid,
            self._sshd(name),
            self._mounts(name),
            self._network(name),
            self._path(name, "/root").stat().st_mode & 0o7777,
            listings,
            self._usage(name),
        )

    def _end_processes(self, name: str) -> None:
        was = self.memory.baselines[name]

        def left() -> dict[int, int]:
            return {
                pid: start_time(pid) or 0
                for pid in processes.inside(was.pid)
                if pid not in (was.pid, was.sshd) and state_of(pid) not in ("Z", "X", "")
            }

        processes.kill_all(left, within=60)

    def _sweep(self, name: str) -> None:
        was = self.memory.baselines[name]
        new = [
            os.path.join(folder, entry)
            for folder in SWEPT
            for entry in os.listdir(self._path(name, folder))
            if entry not in was.listings[folder]
        ]
        if new:
            self.inside(name, "rm", "-rf", "--", *new)
        self._clear_logs(name)

    def _clear_logs(self, name: str) -> None:
        for log in LOGS:
            self._path(name, log).unlink(missing_ok=True)
        self._path(name, "/var/log/sshd.log").open("w").close()

    # -- looking, from outside: nothing is started for it -----------------------------------------------------
    def _path(self, name: str, path: str) -> Path:
        return Path(f"/proc/{self.hosts[name]['pid']}/root{path}")

    def _file(self, name: str, path: str) -> str:
        try:
            return self._path(name, path).read_text()
        except OSError:
            return ""

    def _sshd(self, name: str) -> int:
        """Returns the pid, as this machine sees it, of the host's sshd that listens."""
        inner = self._file(name, "/run/sshd.pid").strip()
        for pid in processes.inside(int(self.hosts[name]["pid"])):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            if f"NSpid:\t{pid}\t{inner}" in lines:
                return pid
        raise AssertionError(f"{name} has no sshd")

    def _mounts(self, name: str) -> str:
        return Path(f"/proc/{self.hosts[name]['pid']}/mountinfo").read_text()

    def _network(self, name: str) -> str:
        """Returns the host's routes, and the names of its interfaces."""
        net = Path(f"/proc/{self.hosts[name]['pid']}/net")
        devices = sorted(line.split(":")[0].strip() for line in (net / "dev").read_text().splitlines()[2:])
        return (net / "route").read_text() + " ".join(devices)

    def _usage(self, name: str) -> list[tuple[int, int]]:
        found = [os.statvfs(self._path(name, disk)) for disk in DISKS]
        return [(disk.f_blocks - disk.f_bfree, disk.f_files - disk.f_ffree) for disk in found]

    # -- the head -------------------------------------------------------------------------------------------
    def _clear_home(self) -> None:
        shared = self.state_dir / "share"
        for path in (*self.home.iterdir(), *(self.home / ".fleet").iterdir(), *shared.iterdir()):
            if path not in (self.home / ".fleet", self.home / ".fleet/lab"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
