"""The head's own ~/.ssh: its files changed, its record kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fleet.ops.setup_ssh import config_block, files, keys, known_hosts
from fleet.ops.setup_ssh.keys import HeadKey
from fleet.ops.setup_ssh.lines import Added
from fleet.ops.setup_ssh.plan import SetupPlan
from fleet.ops.setup_ssh.record import Record
from fleet.transport.ssh_hostkeys import HostKey


class Head:
    """changed: what was changed on this machine, in words. limit: seconds that the ssh-agent has to answer."""

    def __init__(self, plan: SetupPlan, record: Record, limit: float = 10.0) -> None:
        self.plan = plan
        self._limit = limit
        self.record = record
        self.ssh = plan.home / ".ssh"
        self.keys: dict[Path, HeadKey] = {}
        self.changed: list[str] = []

    @property
    def config(self) -> Path:
        return self.ssh / "config"

    def check(self) -> None:
        """Fail now on what would fail later: a key that cannot be used, a broken block."""
        config_block.put(files.read(self.config), self.plan.block, b"", str(self.config))
        for path in self.plan.identities:
            if path.exists():
                self.keys[path] = keys.ensure(path, self.plan.options.new_key_type, self._limit)

    def prepare(self) -> None:
        """~/.ssh, the keys that are missing, the config block."""
        if files.make_private_dir(self.ssh):
            self.record.head.made_dir = True
        elif files.repair_mode(self.ssh, 0o700):
            self.changed.append("mode of .ssh")
        for path in self.plan.identities:
            if path not in self.keys:
                self.keys[path] = keys.ensure(path, self.plan.options.new_key_type, self._limit)
                self.record.head.keys[str(path)] = public_text(self.keys[path])
                self.record.save()
                self.changed.append(f"made key {path}")
        self.write_block()

    def has_block(self) -> bool:
        data = files.read(self.config)
        return data is not None and config_block.take(data, self.plan.block, str(self.config)) != data

    def write_block(self) -> None:
        data = files.read(self.config)
        new = config_block.put(data, self.plan.block, self.plan.head_block, str(self.config))
        if new != data:
            self.record.head.note("config", Added(created=data is None))
            self.record.save()
            files.write(self.config, new, fix_mode=True)
            self.changed.append("config")

    def enrol(self, wanted: Iterable[tuple[Sequence[str], HostKey]], *, instead: bool = False) -> None:
        """Make these host keys known under these names; `instead`: of whatever other keys are on file for them."""
        wanted = list(wanted)
        path = self.ssh / "known_hosts"
        before = data = files.read(path)
        if instead:
            for names, key in wanted:
                data = known_hosts.forget(data, names, keep=key)
        data, added = known_hosts.add(data, wanted)
        if data != before:
            if files.make_private_dir(self.ssh):
                self.record.head.made_dir = True
            self.record.head.note("known_hosts", added)
            self.record.save()
            files.write(path, data)
            self.changed.append("known_hosts")


def public_text(key: HeadKey) -> str:
    """"TYPE BLOB" of a key pair, as the record keeps it."""
    return f"{key.public.type.decode()} {key.public.blob.decode()}"

