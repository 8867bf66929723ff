"""Records what setup-ssh added and where, so that --undo removes exactly that. It holds public keys only, no secrets.

~/.fleet/setup-ssh/NAME.json on the head, one file an inventory; NAME is its block's in an ssh config. A trace belongs
to an account: of a host with another log-in than before it is called USER@HOST. Lines are kept once and referred to by
index: N hosts share N keys."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet import own
from fleet.errors import HostFailed
from fleet.model import Inventory
from fleet.ops.cache import turn
from fleet.ops.setup_ssh import files
from fleet.rules.units import counted
from fleet.runtime import Runtime

TURN_SECONDS = 600.0  # a user may be looking for a password


def block_name(source: str) -> str:
    """Returns a name for an inventory that is new here, which its like of another machine has not: "fleet-3f2a9c"."""
    path = f"{os.uname().nodename}:{place_of(source)}"
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(source).stem).strip("-.") or "inventory"
    return f"{stem[:40]}-{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"


def place_of(source: str) -> str:
    return str(Path(source).resolve()) if Path(source).exists() else source


@dataclass
class Trace:
    """Holds what fleet left in one ~/.ssh. files: name -> lines added (of config: names of blocks). keys: key file ->
    "TYPE BLOB" of a pair that fleet made, "" of one that it was about to make. modes: file -> (mode it had, mode it
    got).

    kept: what stays when nothing is in it any more, as it was there and empty: files, and ".ssh", be it empty or not;
    and whose last line did not end. None: not yet looked at. needs: name -> lines that this inventory relies on,
    whichever added them; uses: keys, as "TYPE BLOB", that it relies on; at: name -> which file that really is, on which
    machine. leaving: it is being taken away, authorized_keys last. shows: the sha256 of the private half of what it
    uses. address, user: where the inventory had it, and who logged in."""

    files: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    modes: dict[str, tuple[str, str]] = field(default_factory=dict)
    needs: dict[str, list[str]] = field(default_factory=dict)
    uses: list[str] = field(default_factory=list)
    at: dict[str, str] = field(default_factory=dict)
    kept: list[str] | None = None
    leaving: bool = False
    shows: str | None = None
    address: str = ""
    user: str = ""

    @property
    def empty(self) -> bool:
        return not (self.files or self.keys or self.modes)

    def note(self, name: str, added: Sequence[str]) -> None:
        lines = self.files.setdefault(name, [])
        lines += [line for line in added if line not in lines]

    def need(self, name: str, lines: Sequence[str]) -> None:
        """Hosts that are not reached this time still rely on what they did."""
        self.needs[name] = list(dict.fromkeys([*self.needs.get(name, ()), *lines]))

    def join(self, other: Trace) -> None:
        """Take what is on the other's record, which is the same home."""
        for name, lines in other.files.items():
            self.note(name, lines)
        for name, lines in other.needs.items():
            self.need(name, lines)
        self.keys |= other.keys
        self.modes = {**other.modes, **self.modes}
        self.uses, self.at = [*dict.fromkeys([*self.uses, *other.uses])], {**other.at, **self.at}
        self.kept = other.kept if self.kept is None else self.found_with(other)

    def found_with(self, other: Trace) -> list[str]:
        """Returns what both have found there: who came second found what the first one had made."""
        mine, theirs = {*(self.kept or ())}, {*(other.kept or ())}
        return sorted((mine | theirs) - {".ssh"} | (mine & theirs & {".ssh"}))

    def hand_over(self, other: Trace) -> list[str]:
        """Moves what the other trace relies on to that trace. Returns the moved parts as text."""
        parts = []
        for name in self.files:
            if name in self.at and self.at[name] == other.at.get(name):
                kept = [line for line in self.files[name] if line in other.needs.get(name, ())]
                self.files[name] = [line for line in self.files[name] if line not in kept]
                other.note(name, kept)
                parts += [f"{counted(len(kept), 'line')} of {name}"] * bool(kept)
        if set(self.at.values()) & set(other.at.values()):
            for key in [key for key, public in self.keys.items() if public in other.uses]:
                other.keys[key] = self.keys.pop(key)
                parts.append(f"key {key}")
            for name in [*self.modes]:
                other.modes.setdefault(name, self.modes.pop(name))
            if self.kept is not None:
                other.kept = self.found_with(other)
        return parts


def my_turn(source: str, runtime: Runtime) -> contextlib.AbstractContextManager[bool]:
    """One setup-ssh at a time changes this user's ~/.ssh, for whatever inventory."""
    return turn("setup-ssh", "another setup-ssh", runtime, holder=f"for {source}", within=TURN_SECONDS)


class Record:
    """The traces of one inventory on the head and its hosts. Thread-safe; written only when it changed."""

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.source = source
        self.head = Trace()
        self.hosts: dict[str, Trace] = {}
        self.others: list[Record] = []  # of the other inventories on this head, be these still there or not
        self._lock = threading.Lock()

    @classmethod
    def load(cls, home: Path, source: str) -> Record:
        """Returns the record of this inventory, empty when there is none. HostFailed where one, its own or another's,
        cannot be understood."""
        folder = home / ".fleet" / "setup-ssh"
        every = [cls._read(path) for path in sorted(folder.glob("*.json"))]
        own = next((record for record in every if record.source == place_of(source)), None)
        record = own or cls(folder / f"{block_name(source)}.json", source)
        record.others = [other for other in every if other is not own]
        return record

    @classmethod
    def _read(cls, path: Path) -> Record:
        record, data = cls(path, ""), files.read(path)
        try:
            if data is not None:  # else it was deleted meanwhile
                record._parse(json.loads(data))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise HostFailed(
                f"{path} is damaged ({type(error).__name__})",
                hint="move it away; what it recorded has to be undone by hand then",
            ) from error
        return record

    @property
    def block(self) -> str:
        """The name of its block in the head's ssh config."""
        return self.path.stem

    def take_over(self, inventory: Inventory) -> None:
        """Take from inventories that are not there any more, as they were moved, hosts of which nothing is here yet."""
        for other in self.others:
            if Path(other.source).is_absolute() and not Path(other.source).exists():
                for host in inventory.hosts:
                    trace = other.hosts.get(host.name)
                    if trace and trace.address == host.address and host.name not in self.hosts:
                        self.hosts[host.name] = other.hosts.pop(host.name)
                if not other.hosts:
                    self.head.join(other.head)
                    other.head = Trace()

    def log_in(self, name: str, user: str) -> None:
        """Have `name` be the account of this user there."""
        was = self.hosts.get(name)
        if was and was.user not in ("", user) and not was.empty:
            self.hosts[f"{was.user}@{name}"] = self.hosts.pop(name)
        if back := self.hosts.pop(f"{user}@{name}", None):
            self.hosts[name] = back

    def host(self, name: str) -> Trace:
        return self.hosts.setdefault(name, Trace())

    @property
    def empty(self) -> bool:
        return self.head.empty and all(trace.empty for trace in self.hosts.values())

    def forget(self, name: str) -> None:
        """Nothing is left of fleet on this host."""
        self.hosts.pop(name, None)
        self.save()

    def save_all(self) -> None:
        """Write it, and then the others, without those that were taken over."""
        self.save()
        for other in self.others:
            if other.hosts or not other.empty:
                other.save()
            else:
                other.delete()
        self.others = [other for other in self.others if other.hosts or not other.empty]

    def save(self) -> bool:
        """Write it before the changes it describes are made: better one line too many on record than one too few."""
        with self._lock:
            text: dict[str, int] = {}

            def dump(trace: Trace) -> dict[str, Any]:
                return {
                    "files": {
                        name: {"lines": [text.setdefault(line, len(text)) for line in lines]}
                        for name, lines in sorted(trace.files.items())
                    },
                    "keys": trace.keys,
                    **({"modes": trace.modes} if trace.modes else {}),
                    "needs": {
                        name: [text.setdefault(line, len(text)) for line in lines]
                        for name, lines in sorted(trace.needs.items())
                    },
                    "uses": [text.setdefault(key, len(text)) for key in trace.uses],
                    "at": trace.at,
                    "kept": trace.kept,
                    **({"leaving": True} if trace.leaving else {}),
                    "shows": trace.shows,
                    "address": trace.address,
                    "user": trace.user,
                }

            document = {
                "inventory": place_of(self.source),
                "head": dump(self.head),
                "hosts": {name: dump(trace) for name, trace in sorted(self.hosts.copy().items())},
                "text": [*text],
            }
            own.home(self.path.parents[2])
            return files.write(self.path, (json.dumps(document, indent=0) + "\n").encode())

    def delete(self) -> None:
        files.write(self.path, None)

    def _parse(self, document: dict[str, Any]) -> None:
        text = document["text"]

        def trace(value: dict[str, Any]) -> Trace:
            return Trace(
                {name: [text[i] for i in a["lines"]] for name, a in value["files"].items()},
                dict(value["keys"]),
                {name: (was, now) for name, (was, now) in value.get("modes", {}).items()},
                {name: [text[i] for i in lines] for name, lines in value["needs"].items()},
                [text[i] for i in value["uses"]],
                dict(value["at"]),
                value["kept"],
                value.get("leaving", False),
                value.get("shows"),
                value.get("address", ""),
                value.get("user", ""),
            )

        self.source = str(document["inventory"])
        self.head = trace(document["head"])
        self.hosts = {name: trace(value) for name, value in document["hosts"].items()}
