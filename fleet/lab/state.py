"""Keeps the lab's state folder. One command at a time changes it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from fleet import own
from fleet.codec import from_json
from fleet.errors import InventoryError, LabError, UsageError
from fleet.lab.processes import is_alive
from fleet.node.base.errors import on_os_error
from fleet.node.base.files import replace_file
from fleet.node.base.locks import release, wait_for

INVENTORY_COMMENT = (
    "# `fleet -i lab ...` reads it; what you change stays until `fleet lab up` makes a new lab or more hosts.\n"
)


@dataclass
class Machine:
    """Describes one virtual host.

    number: counts from 1. pid: its first process. started: that process's start time. link: the rate of its own link,
    None: as State.link."""

    number: int
    address: str
    pid: int | None = None
    started: int | None = None
    link: str | None = None

    @property
    def up(self) -> bool:
        return is_alive(self.pid, self.started)


@dataclass
class State:
    """Holds the fields of state.json.

    network: the lab's part of 198.18.0.0/16. link: the rate of each link, None: unlimited. disk: what a new host may
    write, as tmpfs takes it ("512m")."""

    network: str | None = None
    link: str | None = None
    disk: str | None = None
    switch_pid: int = 0
    switch_started: int | None = None
    hosts: dict[str, Machine] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        return is_alive(self.switch_pid, self.switch_started)


def read_lab_name() -> str:
    """Returns the lab's name, $FLEET_LAB or "lab": several labs may be up at once. Raises UsageError."""
    name = os.environ.get("FLEET_LAB") or "lab"
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,38}[A-Za-z0-9])?", name):
        raise UsageError(
            f"$FLEET_LAB {name!r} cannot be part of a host name",
            hint="letters, digits and '-' inside, at most 40 characters",
        )
    return name


class Folder:
    """Reads and writes the state folder: $FLEET_LAB_DIR, else ~/.fleet/lab/NAME. It has mode 0700, as it holds the
    password and the hosts' keys.

    lab_name: the lab's name. shared: /share of all hosts."""

    def __init__(self) -> None:
        self.lab_name = read_lab_name()
        given = os.environ.get("FLEET_LAB_DIR")
        self.path = Path(given).absolute() if given else Path.home().absolute() / ".fleet/lab" / self.lab_name
        self.inventory = self.path / "inventory.yaml"
        self.password_file = self.path / "password"
        self.host_keys = self.path / "host_keys"
        self.mountpoint = self.path / "root"
        self.shared = self.path / "share"  # /share of all hosts

    @property
    def short_id(self) -> str:
        """Returns the name of this lab's interface and control groups. An interface name has at most 15 characters."""
        return "fl" + hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    def create(self) -> None:
        try:
            if self.path.is_dir() and not (self.path / "host_keys").exists() and any(self.path.iterdir()):
                # $FLEET_LAB_DIR=/tmp would close /tmp to all other users
                raise LabError(
                    f"{self.path} is no lab's state folder: other things are in it",
                    hint="give $FLEET_LAB_DIR a folder of its own",
                )
            if not os.environ.get("FLEET_LAB_DIR"):
                own.home(Path.home(), "lab")
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            for folder in (self.host_keys, self.mountpoint):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            raise LabError(f"cannot make the lab's state folder {self.path}: {e.strerror}") from e

    @contextlib.contextmanager
    def locked(self, within: float = 120.0) -> Iterator[None]:
        """Locks the lab for this command. Raises LabError if another command still holds the lock after `within`
        seconds."""
        self.create()
        with exclusive(self.path / "lock", within, f"another `fleet lab` command works on {self.path}"):
            yield

    def load(self) -> State:
        """Returns the stored state, an empty one if there is none. Raises LabError if it cannot be read."""
        try:
            return from_json(State, json.loads((self.path / "state.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return State()
        except (OSError, ValueError) as e:
            raise LabError(
                f"{self.path / 'state.json'} cannot be read: {e}", hint="'fleet lab down' clears it away"
            ) from e

    def save(self, state: State) -> None:
        """Writes the state. Writes the inventory only if it is missing or the hosts have changed, so that a user's
        changes to it stay."""
        known = self.load().hosts if self.inventory.exists() else {}
        if known.keys() != state.hosts.keys():
            self._write_inventory(state)
        write_file(self.path / "state.json", json.dumps(asdict(state), indent=1) + "\n")

    def _write_inventory(self, state: State) -> None:
        hosts = {name: {"address": machine.address} for name, machine in state.hosts.items()}
        defaults = {"user": "root", "python": sys.executable, "workdir": "~/work", "slots": 1}  # noqa: TID251
        text = yaml.safe_dump({"defaults": defaults, "hosts": hosts}, sort_keys=False, default_flow_style=None)
        write_file(self.inventory, INVENTORY_COMMENT + text)

    def reset(self, state: State) -> None:
        """Writes the state of a lab that is not up, and removes its other files. Host keys and the network stay, so
        that entries in known_hosts stay valid."""
        # *.new: files that a killed command was writing
        for path in (self.inventory, self.password_file, self.path / "launch.log", *self.path.glob("*.new")):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.shared, ignore_errors=True)
        write_file(self.path / "state.json", json.dumps(asdict(state), indent=1) + "\n")

    def password(self) -> str:
        """Returns the password of root on every host. The first call makes it."""
        if not self.password_file.exists():
            write_file(self.password_file, secrets.token_urlsafe(16) + "\n")
        return self.password_file.read_text(encoding="utf-8").strip()


def make_host_keys(folder: Path, hosts: Sequence[str]) -> None:
    """Makes an ed25519 host key for each host that has none. `down` and `up` keep it."""
    # imported here, as commands that only read the lab's inventory do not need it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    for host in hosts:
        private, public = (folder / host / f"ssh_host_ed25519_key{ending}" for ending in ("", ".pub"))
        if public.exists():
            continue
        key = Ed25519PrivateKey.generate()
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        private.parent.mkdir(mode=0o700, exist_ok=True)
        write_file(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode())
        write_file(public, f"{line} root@{host}\n")


def select(state: State, hosts: Sequence[str]) -> list[str]:
    """Returns the hosts of these node sets, in the lab's order. Raises UsageError for an unknown host."""
    try:
        wanted = set(NodeSet(",".join(hosts), resolver=RESOLVER_NOGROUP))
    except NodeSetException as e:
        raise UsageError(f"not a host or node set: {e}", hint="for example lab02 or lab[01-03]") from e
    unknown = sorted(wanted - set(state.hosts))
    if unknown or not wanted:
        known = NodeSet.fromlist(state.hosts, resolver=RESOLVER_NOGROUP) if state.hosts else "no host"
        raise UsageError(f"the lab has no host {unknown[0] if unknown else ''}".rstrip(), hint=f"it has {known}")
    return [name for name in state.hosts if name in wanted]


def write_file(path: Path, text: str) -> None:
    """Replaces a private file atomically."""
    replace_file(os.fsencode(path), text.encode(), 0o600)


@contextlib.contextmanager
def exclusive(path: Path, within: float, message: str) -> Iterator[None]:
    """Holds an flock on `path`, which ends with the process. Raises LabError."""
    # no link is followed: another user who can write to the folder could have root make a file anywhere
    with on_os_error(LabError, f"cannot lock {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        if not wait_for(fd, fcntl.LOCK_EX, within, lock=fcntl.flock):
            raise LabError(message, hint="wait for it, or end it and try again")
        yield
    finally:
        release(fd)


def inventory_path() -> Path:
    """Returns the inventory file of the lab, for `-i lab`. Raises InventoryError if the lab is not up."""
    folder = Folder()
    if not folder.inventory.exists() or not folder.load().up:
        raise InventoryError(f"the lab {folder.lab_name!r} is not up", hint="fleet lab up 4")
    return folder.inventory
