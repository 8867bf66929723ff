"""Changes the head's own ~/.ssh, and keeps its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleet.ops.setup_ssh import config_block, edits, files
from fleet.ops.setup_ssh.edits import PublicKey
from fleet.ops.setup_ssh.planning import HostPlan, SetupPlan
from fleet.ops.setup_ssh.record import Record
from fleet.transport.ssh.hostkeys import HostKey


class Head:
    """Changes files of the head. changed: the changes on this machine, as text. leads: the hosts with entries in the
    ssh configs, that is, the hosts that were set up. fresh: hosts without an earlier record. limit: seconds for the
    ssh-agent to respond."""

    def __init__(self, plan: SetupPlan, record: Record, limit: float = 10.0) -> None:
        self.plan = plan
        self._limit = limit
        self.record = record
        self.ssh = plan.home / ".ssh"
        self.config = self.ssh / "config"
        self.keys: dict[Path, PublicKey] = {}
        self.changed: list[str] = []
        self.leads: frozenset[str] = frozenset()
        self.fresh: set[str] = set()

    def check(self) -> None:
        """Raises an error for a key that cannot be used and for a broken block, before anything is changed on hosts.
        Removes files that a killed setup-ssh left."""
        head = self.record.head
        if head.kept is None and head.empty:
            there = [s for name in ("known_hosts", "config") for s in edits.found(files.read(self.ssh / name), name)]
            head.kept = there + [".ssh"] * self.ssh.is_dir()
        before = config_block.names(files.read(self.config), self.plan.block, str(self.config))
        self.leads = before & {entry.name for entry in self.plan.head_entries}
        if before:
            self.write_block()  # removes hosts that the inventory does not have any more
        for path in self.ssh.glob(f"{files.WORK}*"):  # no other process is at work here
            path.unlink(missing_ok=True)
        for path in self.plan.identities:
            if path.exists():
                self.keys[path] = files.ensure_key(path, self.plan.request.new_key_type, self._limit)

    def prepare(self) -> None:
        """Makes ~/.ssh and missing keys."""
        files.make_private_dir(self.ssh)
        self._narrow(".ssh", self.ssh)
        for path in self.plan.identities:
            if path not in self.keys:
                self.record.head.keys[str(path)] = ""  # recorded before the key is made
                self.record.save()
                self.keys[path] = files.ensure_key(path, self.plan.request.new_key_type, self._limit)
                self.record.head.keys[str(path)] = self.keys[path].id
                self.record.save()
                self.changed.append(f"made key {path}")

    def begin(self, plans: Mapping[str, HostPlan]) -> None:
        """Adds these hosts to the record, before anything is changed on them."""
        for name, plan in plans.items():
            self.record.log_in(name, plan.endpoint.user)
        self.fresh = plans.keys() - self.record.hosts
        for name, plan in plans.items():
            trace = self.record.host(name)
            trace.address, trace.user = plan.host.address, plan.endpoint.user
        self.record.save()

    def not_begun(self, names: Iterable[str]) -> None:
        """Removes hosts from the record at which no login succeeded."""
        for name in list(names):
            self.record.forget(name)

    def with_block(self, data: bytes) -> bytes:
        """Returns the user's config with the block of all hosts."""
        return config_block.put(data, self.plan.block, self.plan.head_block, str(self.config))

    def write_block(self) -> None:
        data = files.read(self.config)
        text = config_block.only(self.plan.head_block, self.leads)
        if not text and data is None:
            return
        new = config_block.put(data, self.plan.block, text, str(self.config))
        if new != data:
            self._put("config", new, [self.plan.block])

    def enrol(self, wanted: Iterable[tuple[HostPlan, HostKey]], *, instead: bool = False) -> None:
        """Adds these host keys to known_hosts, under the addresses to which fleet connected. instead: first removes
        other keys of these addresses and of the hosts' names."""
        wanted = list(wanted)
        before = data = files.read(self.ssh / "known_hosts")
        if instead:
            for plan, key in wanted:
                data = edits.forget_hosts(data, (plan.dialled, plan.called.known_name, plan.name), keep=key)
        data, added = edits.add_hosts(data, [((plan.dialled,), key) for plan, key in wanted])
        head = self.record.head
        head.need("known_hosts", edits.lines_with_hosts(data, [((), key) for _, key in wanted]))
        head.at = {name: str((self.ssh / name).resolve()) for name in ("known_hosts", "config")}
        head.uses = [key.id for key in self.keys.values()]
        if data != before:
            self._put("known_hosts", data, added)

    def _put(self, name: str, data: bytes | None, added: Sequence[str]) -> None:
        self.record.head.note(name, added)
        self.record.save()
        if name == "config":
            self._narrow(name, self.ssh / name)
        files.write(self.ssh / name, data)
        self.changed.append(name)

    def _narrow(self, name: str, path: Path) -> None:
        """Removes the write permission of group and others, because ssh would not read the file. Does not change a file
        outside the home, to which a link may lead."""
        modes = files.open_mode(path)
        if modes is not None and path.resolve().is_relative_to(self.ssh.parent.resolve()):
            was, now = (f"{mode:o}" for mode in modes)
            self.record.head.modes.setdefault(name, (was, now))
            self.record.save()
            path.chmod(modes[1])
            self.changed.append(f"mode of {name}")
