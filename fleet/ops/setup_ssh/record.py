"""Records what setup-ssh added and where, so that --undo removes exactly that. It holds public keys only, no secrets.

Each inventory has a file ~/.fleet/setup-ssh/NAME.json on the head. NAME is also the name of its block in ssh configs. A
trace belongs to an account. If a host's user changes, the old account's trace is renamed USER@HOST. Each line is stored
once and referred to by its index, as N hosts share N keys."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet import own
from fleet.codec import from_json, plain
from fleet.errors import HostFailed
from fleet.model import Inventory
from fleet.ops.cache import turn
from fleet.ops.setup_ssh import files
from fleet.rules.units import counted
from fleet.runtime import Runtime

TURN_SECONDS = 600.0  # a user may be looking for a password
# keys that every trace in a record must have. If one were missing, --undo would leave some of fleet's changes
ALWAYS = {"files", "keys", "needs", "uses", "at", "kept"}


def block_name(source: str) -> str:
    """Returns a name for a new inventory, like "fleet-3f2a9c". It differs from names on other machines."""
    path = f"{os.uname().nodename}:{place_of(source)}"
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(source).stem).strip("-.") or "inventory"
    return f"{stem[:40]}-{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"


def place_of(source: str) -> str:
    return str(Path(source).resolve()) if Path(source).exists() else source


@dataclass
class Trace:
    """Holds fleet's changes to one ~/.ssh. files: name -> added lines (for config: names of blocks). keys: key file ->
    "TYPE BLOB" of a pair that fleet made, "" if it was about to make it. modes: file -> (old mode, new mode).

    kept: the state before setup-ssh, which an undo restores: ".ssh" if it existed, empty files, and notes on files
    without a final newline (see edits.found()); None if it is not read yet. needs: name -> lines that this inventory
    relies on, added by any inventory. uses: keys ("TYPE BLOB") that it relies on. at: name -> the resolved path of the
    file; on a host, after the fingerprint of its host key. Two traces with an equal `at` have the same file. leaving:
    an undo has begun. It removes the head's key last: the undo is done if the head cannot log in any more. shows: the
    sha256 of the private key, which proves that the account has it. address, user: of the account."""

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
        """Adds lines that this inventory relies on. Earlier ones stay, for hosts that are not reached this time."""
        self.needs[name] = list(dict.fromkeys([*self.needs.get(name, ()), *lines]))

    def join(self, other: Trace) -> None:
        """Adds another trace of the same home."""
        for name, lines in other.files.items():
            self.note(name, lines)
        for name, lines in other.needs.items():
            self.need(name, lines)
        self.keys |= other.keys
        self.modes = {**other.modes, **self.modes}
        self.uses, self.at = [*dict.fromkeys([*self.uses, *other.uses])], {**other.at, **self.at}
        self.kept = other.kept if self.kept is None else self.found_with(other)

    def found_with(self, other: Trace) -> list[str]:
        """Returns the `kept` of both traces together. It has ".ssh" only if both have it: the later trace found the
        ".ssh" that the earlier one had made."""
        mine, theirs = {*(self.kept or ())}, {*(other.kept or ())}
        return sorted((mine | theirs) - {".ssh"} | (mine & theirs & {".ssh"}))

    def hand_over(self, other: Trace) -> list[str]:
        """Moves the parts that the other trace relies on to that trace. Returns the moved parts as text."""
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
    """Returns the lock that allows one setup-ssh at a time to change this user's ~/.ssh."""
    return turn("setup-ssh", "another setup-ssh", runtime, holder=f"for {source}", within=TURN_SECONDS)


class Record:
    """Holds the traces of one inventory on the head and its hosts. It is thread-safe, and written only if it
    changed."""

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.source = source
        self.head = Trace()
        self.hosts: dict[str, Trace] = {}
        self.others: list[Record] = []  # records of the other inventories on this head, even of removed ones
        self._lock = threading.Lock()

    @classmethod
    def load(cls, home: Path, source: str) -> Record:
        """Returns the record of this inventory, an empty one if there is none. Raises HostFailed if any record is
        damaged."""
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
            if data is not None:  # None: it was deleted meanwhile
                record._parse(json.loads(data))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise HostFailed(
                f"{path} is damaged ({type(error).__name__})",
                hint="move it away; what it recorded has to be undone by hand then",
            ) from error
        return record

    @property
    def block(self) -> str:
        """Returns the name of its block in the head's ssh config."""
        return self.path.stem

    def take_over(self, inventory: Inventory) -> None:
        """Takes over the hosts from records of inventories that were moved, unless this record has them."""
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
        """Makes `name` the trace of this user's account. The trace of another user is renamed USER@HOST."""
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
        """Removes a host from the record, and writes it."""
        self.hosts.pop(name, None)
        self.save()

    def save_all(self) -> None:
        """Writes this record, then the others. Deletes those that were taken over."""
        self.save()
        for other in self.others:
            if other.hosts or not other.empty:
                other.save()
            else:
                other.delete()
        self.others = [other for other in self.others if other.hosts or not other.empty]

    def save(self) -> bool:
        """Writes the record. Returns whether its file changed. Call it before the changes, so that no change can be
        missing in it."""
        with self._lock:
            text: dict[str, int] = {}

            def numbers(lines: Sequence[str]) -> list[int]:
                return [text.setdefault(line, len(text)) for line in lines]

            def dump(trace: Trace) -> dict[str, Any]:
                files = {name: {"lines": numbers(lines)} for name, lines in sorted(trace.files.items())}
                needs = {name: numbers(lines) for name, lines in sorted(trace.needs.items())}
                rest = plain(replace(trace, files={}, needs={}, uses=[]))  # without the lines, which are many
                return {**rest, "files": files, "needs": needs, "uses": numbers(trace.uses)}

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
        text = from_json(list[str], document["text"])

        def lines(numbers: Sequence[int]) -> list[str]:
            return [text[number] for number in numbers]

        def trace(value: dict[str, Any]) -> Trace:
            if absent := ALWAYS - value.keys():
                raise KeyError(*absent)
            found = from_json(Trace, {**value, "files": {}, "needs": {}, "uses": []})
            found.files = {name: lines(added["lines"]) for name, added in value["files"].items()}
            found.needs = {name: lines(numbers) for name, numbers in value["needs"].items()}
            found.uses = lines(value["uses"])
            return found

        self.source = str(document["inventory"])
        self.head = trace(document["head"])
        self.hosts = {name: trace(value) for name, value in document["hosts"].items()}
