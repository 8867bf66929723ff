"""Implements `fleet lab`: up, down, status, cut, heal, freeze, kill, link."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fleet.errors import LabError, UsageError
from fleet.lab import names, processes, switch
from fleet.lab.processes import Launch, require, which
from fleet.lab.slurm import KEY
from fleet.lab.slurm import remove as remove_slurm
from fleet.lab.slurm import start as start_slurm
from fleet.lab.state import Folder, Machine, State, make_host_keys, select
from fleet.node.base.processes import start_time, state_of

DEFAULT_HOSTS = 4
# files below each home, and /root, that a fresh machine would not have
SECRETS = (".ssh", ".fleet", ".gnupg", ".aws", ".kube", ".docker", ".netrc", ".git-credentials", ".config/gh")
# startup files of the head's user, which must not run on the hosts: pyenv in them costs each login 100 ms
SHELL_FILES = (".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshrc", ".zshenv", ".zprofile", ".cshrc")
# the head's records of logins
LOGINS = tuple(f"/var/log/{name}" for name in ("lastlog", "wtmp", "btmp", "faillog"))


class Lab:
    """Controls the lab of this user and $FLEET_LAB. Each method is one command. After each, `down` can clear the
    lab."""

    def __init__(self) -> None:
        self.folder = Folder()

    def up(
        self, count: int | None = None, link: str | None = None, disk: str | None = None, slurm: bool = False
    ) -> State:
        """Starts hosts that are off, and adds hosts up to `count`. The others stay unchanged.

        link: a rate for every cable, both ways; "none" lifts it, None keeps it. disk: the most that a new host may
        write, as tmpfs takes it ("512m"). slurm: the hosts run Slurm from now on. Raises LabError.
        """
        if count is not None and not 1 <= count <= switch.MAX_HOSTS:
            raise UsageError(f"a lab has 1 to {switch.MAX_HOSTS} hosts, not {count}")
        if link is not None and link != "none":
            switch.parse_rate(link)
        if disk is not None and not re.fullmatch(r"[1-9]\d*[kmgKMG%]?", disk):
            raise UsageError(f"--disk {disk!r} is not a size", hint="for example 512m or 4g")
        require(shaped=link is not None, slurm=slurm)
        with self.folder.locked():
            state = self.folder.load()
            fresh = not state.up
            if fresh:
                state = self._clear(state.network)
            keep = {state.switch_pid, *(m.pid for m in state.hosts.values() if m.up)}
            try:
                self._end_others(keep)
                state.link = state.link if link is None else None if link == "none" else link
                state.disk = disk or state.disk
                started = self._start(state, count or len(state.hosts) or DEFAULT_HOSTS)
                if link is not None:
                    self._link_all(state)
                elif state.link:
                    for name in started:
                        self._link(state, name)
                if (slurm and not self.has_slurm) or (self.has_slurm and started):
                    start_slurm(
                        self.folder.path, self.folder.short_id, {name: pid_of(state, name) for name in state.hosts}
                    )
            except BaseException:
                if fresh:
                    self._clear(state.network)
                else:
                    self._end_others(keep)
                raise
            return state

    @property
    def has_slurm(self) -> bool:
        """Is true if its hosts run Slurm."""
        return (self.folder.path / KEY).exists()

    def down(self) -> None:
        """Ends the lab. Only the hosts' keys stay on this machine, in the state folder."""
        require()
        with self.folder.locked():
            try:
                network = self.folder.load().network
            except LabError:  # unreadable: processes are found without it
                network = None
            self._clear(network)

    def conditions(self, state: State) -> dict[str, str]:
        """Returns the condition of each host: "up", "cut", "frozen", "cut, frozen" or "off", as the kernel has it."""
        cables = switch.ports(state.switch_pid) if state.up and state.switch_pid and os.geteuid() == 0 else {}
        conditions = {}
        for name, machine in state.hosts.items():
            states = [] if cables.get(machine.number, True) else ["cut"]
            if machine.pid is not None and state_of(machine.pid) == "T":
                states.append("frozen")
            conditions[name] = (", ".join(states) or "up") if machine.up and state.up else "off"
        return conditions

    def cut(self, hosts: Sequence[str]) -> list[str]:
        """Pulls the hosts' network cables: nothing passes, no peer is notified."""
        return self._each(hosts, lambda state, name: self._cable(state, name, up=False))

    def freeze(self, hosts: Sequence[str]) -> list[str]:
        """Stops every process of the hosts. The kernel still accepts connections for them."""
        return self._each(hosts, lambda state, name: processes.freeze(pid_of(state, name)))

    def heal(self, hosts: Sequence[str]) -> list[str]:
        """Reverts cut and freeze."""

        def heal(state: State, name: str) -> None:
            processes.thaw(pid_of(state, name))
            self._cable(state, name, up=True)

        return self._each(hosts, heal)

    def kill(self, hosts: Sequence[str]) -> list[str]:
        """Powers the hosts off. `up` starts them again, as new but with their old host keys."""

        def kill(state: State, name: str) -> None:
            machine = state.hosts[name]
            pid = pid_of(state, name)
            self._cable(state, name, up=False)  # first: dying processes would close their connections to peers
            processes.kill_all(lambda: {pid: machine.started or 0} if machine.up else {})
            machine.pid = machine.started = None

        return self._each(hosts, kill)

    def link(self, hosts: Sequence[str], rate: str) -> list[str]:
        """Limits the hosts' links to `rate`, both ways. "none" lifts the limit."""
        if rate != "none":
            switch.parse_rate(rate)
        require(shaped=True)

        def limit(state: State, name: str) -> None:
            state.hosts[name].link = rate
            self._link(state, name)

        return self._each(hosts, limit)

    def _each(self, hosts: Sequence[str], do: Any) -> list[str]:
        require()
        with self.folder.locked():
            state = self.folder.load()
            if not state.up:
                raise LabError(f"the lab {self.folder.lab_name!r} is not up", hint="fleet lab up 4")
            chosen = select(state, hosts)
            off: list[LabError] = []
            for name in chosen:
                try:
                    do(state, name)
                except LabError as error:
                    off.append(error)
                self.folder.save(state)
            if off:
                raise off[0]
            return chosen

    def _cable(self, state: State, name: str, up: bool) -> None:
        pid_of(state, name)
        switch.set_cable(state.switch_pid, state.hosts[name].number, up)

    def _link(self, state: State, name: str) -> None:
        machine = state.hosts[name]
        rate = machine.link or state.link or "none"
        switch.shape(switch.in_switch(state.switch_pid), switch.port(machine.number), rate)
        switch.shape(switch.in_switch(pid_of(state, name)), "eth0", rate)

    def _link_all(self, state: State) -> None:
        switch.shape([], self.folder.short_id, state.link or "none")
        switch.shape(switch.in_switch(state.switch_pid), "head", state.link or "none")
        for name, machine in state.hosts.items():
            if machine.up:
                machine.link = None
                self._link(state, name)
        self.folder.save(state)

    def _end_others(self, keep: set[int | None]) -> None:
        """Ends processes that a killed `up` or a failed start left."""
        marked = partial(processes.marked, self.folder.path)
        processes.kill_all(lambda: {pid: born for pid, born in marked().items() if pid not in keep})

    def _clear(self, network: str | None) -> State:
        """Ends all processes of the lab, on record or not. Returns an empty state that keeps the network."""
        self._end_others(set())
        with names.machine_lock():
            switch.remove_interface(self.folder.short_id)
            remove_slurm(self.folder.path, self.folder.short_id)
            names.update(names.HOSTS_FILE, self.folder.path, {})
        state = State(network=network)
        self.folder.reset(state)
        return state

    def _start(self, state: State, count: int) -> list[str]:
        """Starts the hosts that are off or missing. Returns their names."""
        wanted = [f"{self.folder.lab_name}{number:02d}" for number in range(1, count + 1)]
        new = [name for name in wanted if name not in state.hosts]
        start = [name for name in [*state.hosts, *new] if name in new or not state.hosts[name].up]
        if not start and state.up:
            return []
        make_host_keys(self.folder.host_keys, start)
        with contextlib.ExitStack() as launched:
            with names.machine_lock():  # another lab could take the network until the head has its address
                fresh = not state.up
                if fresh:
                    state.network = str(
                        switch.choose_network(switch.taken_networks(), state.network, self.folder.short_id)
                    )
                network = ipaddress.IPv4Network(state.network)
                head = switch.head_address(network)
                for name in new:
                    number = wanted.index(name) + 1
                    state.hosts[name] = Machine(number, switch.host_address(network, number))
                addresses = {name: machine.address for name, machine in state.hosts.items()}
                spec = self._spec(state, start, head, names.hosts_text(head, addresses))
                launch = launched.enter_context(
                    Launch({**spec, "switch": fresh}, self.folder.path, within=60 + 2.0 * len(start))
                )
                pids = launch.pids()
                if fresh:
                    state.switch_pid = pids.pop("switch")
                    state.switch_started = start_time(state.switch_pid)
                    switch.connect_head(self.folder.short_id, state.switch_pid, network)
                for name, pid in pids.items():
                    state.hosts[name].pid = pid
                    state.hosts[name].started = start_time(pid)
                    state.hosts[name].link = None
                self.folder.save(state)
                switch.connect_hosts(state.switch_pid, {pids[name]: state.hosts[name] for name in start})
                names.update(names.HOSTS_FILE, self.folder.path, addresses)
                for name, machine in state.hosts.items() if new else ():
                    if name not in start and machine.up:
                        names.append_names(pid_of(state, name), {each: addresses[each] for each in new})
            launch.go()  # without the lock: it takes longest, and other labs need not wait for it
        return start

    def _spec(self, state: State, start: list[str], head: str, etc_hosts: str) -> dict[str, Any]:
        self.folder.shared.mkdir(mode=0o700, exist_ok=True)
        hidden = {str(home / name) for home in (Path.home(), Path("/root")) for name in SECRETS + SHELL_FILES}
        return {
            "mountpoint": str(self.folder.mountpoint),
            "hidden": sorted({*hidden, *LOGINS, str(self.folder.path)}),
            "shown": python_folders(),
            "disk": state.disk,
            "shared": str(self.folder.shared),
            "password": self.folder.password(),
            "etc_hosts": etc_hosts,
            "prefix": switch.PREFIX,
            "neighbours": switch.neighbours([head, *(machine.address for machine in state.hosts.values())]),
            "ip": which("ip"),
            "sshd": which("sshd"),
            "hosts": [
                {"name": n, "address": state.hosts[n].address, "keys": str(self.folder.host_keys / n)} for n in start
            ],
        }


def python_folders() -> list[str]:
    """Returns the folders of fleet, its interpreter and their packages. Hosts see them even below /tmp."""
    packages = {path for path in sys.path if path.endswith("-packages")}
    folders = {sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]), *packages}
    return sorted(path for path in folders if not any(str(parent) in folders for parent in Path(path).parents))


def pid_of(state: State, name: str) -> int:
    machine = state.hosts[name]
    if not machine.up or machine.pid is None:
        raise LabError("it is off", host=name, hint="`fleet lab up` starts it again")
    return machine.pid
