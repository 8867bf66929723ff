"""Reads the settings of one host from ssh_config(5). Needs no paramiko.

The reader understands what nearly every file holds: Host with patterns, plain keywords with plain values, Include, and
the "Match final all" of Red Hat's file. Any other line (quotes, tokens, Match, ...) is deferred: `ssh -G` then reads
the settings of the hosts that it may concern. So no line is understood in two ways.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from fleet.errors import ConnectError
from fleet.transport.base import Cancel
from fleet.transport.ssh.ask import NoClient, SshClient
from fleet.transport.ssh.settings import (
    FOLLOWED,
    IRRELEVANT,
    IRRELEVANT_SYSTEM,
    SEVERAL,
    Query,
    Settings,
    merged,
    one_of,
    split_value,
    tilde,
)

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
INCLUDE_DEPTH = 16

_LINE = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9]*)(?:[ \t]*=[ \t]*|[ \t]+)([^ \t=].*)", re.DOTALL)
_PATTERNS = re.compile(r"!?[A-Za-z0-9_.:*?,-]+(?:[ \t]+!?[A-Za-z0-9_.:*?,-]+)*")


@dataclass
class _Section:
    """Holds the lines that follow one Host or Match line.

    patterns: the patterns of the Host line; None if the section applies to all names. final: the section begins with
    "Match final". items: settings (keyword, values, FILE:LINE), included files, and the FILE:LINE of deferred lines."""

    patterns: tuple[str, ...] | None = None
    final: bool = False
    items: list[tuple[str, list[str], str] | _File | str] = field(default_factory=list)


class _File:
    """Holds a file's sections. Sections with plain names are indexed by name, for files with a thousand of them."""

    def __init__(self) -> None:
        self.sections: list[_Section] = []
        self._by_name: dict[str, list[int]] = {}
        self._others: list[int] = []

    def add(self, section: _Section) -> _Section:
        index = len(self.sections)
        self.sections.append(section)
        if section.patterns is None or any(c in p for p in section.patterns for c in "*?!"):
            self._others.append(index)
        else:
            for name in section.patterns:
                self._by_name.setdefault(name, []).append(index)
        return section

    def settings(self, name: str, final: bool) -> Iterator[tuple[str, list[str], str] | str]:
        """Yields the items that apply to this name, in order. final: also those under "Match final"."""
        indexes = {*self._by_name.get(name, ())}
        indexes.update(i for i in self._others if _matches(self.sections[i].patterns, name))
        for index in sorted(i for i in indexes if final or not self.sections[i].final):
            for item in self.sections[index].items:
                if isinstance(item, _File):
                    yield from item.settings(name, final)
                else:
                    yield item

    def names(self) -> Iterator[str]:
        """Yields the names, not the patterns, on the Host lines of this file and of the files that it includes."""
        for section in self.sections:
            yield from (p for p in section.patterns or () if not any(c in p for c in "*?!,"))
            for item in section.items:
                if isinstance(item, _File):
                    yield from item.names()


def _matches(patterns: tuple[str, ...] | None, name: str) -> bool:
    """Returns whether ssh's patterns match the name. They have * and ?; a pattern that begins with ! excludes. Case
    counts."""
    hits = [p for p in patterns or () if fnmatchcase(name, p.lstrip("!"))]
    return patterns is None or (bool(hits) and not any(p.startswith("!") for p in hits))


class SshConfig:
    """Reads the user's and the system's ssh_config once.

    home: the directory that ~ means. files: the files to read; None for ~/.ssh/config and SYSTEM_CONFIG. edit: a
    function that changes the content of the first file before it is parsed."""

    def __init__(
        self, home: Path, files: tuple[Path, ...] | None = None, edit: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.home = home
        self.local_user = pwd.getpwuid(os.getuid()).pw_name
        self._files = files if files is not None else (home / ".ssh/config", SYSTEM_CONFIG)
        self._edit = edit
        self._lock = threading.Lock()
        self._roots: list[_File] | None = None
        self._first_deferred: str | None = None
        self._accepted = False
        self._final = False
        self._lines: dict[str, dict[str, str]] = {}
        self._text = b""
        self._client = SshClient(home, self._files, edit is None, lambda: self._text, self._lines)

    def lookup(self, query: Query, cancel: Cancel | None = None) -> Settings:
        """Returns the settings {lower-case keyword: [(value, "FILE:LINE"), ...]} of this host. Raises
        ConnectError(kind="config") for a file that ssh would refuse."""
        with self._lock:
            self._load()
            if self._first_deferred and not self._accepted:
                # one bad line makes ssh refuse the whole file, for all hosts
                with contextlib.suppress(NoClient):
                    self._client.ask(query, self._first_deferred, cancel)
                self._accepted = True
        found = self._settings(query.name, False)
        if isinstance(found, dict) and "hostname" in found:
            name, where = found["hostname"][0]
            found["hostname"] = [(name.replace("%h", query.name), where)]
        if isinstance(found, dict) and self._final:
            # ssh reads all files again, with the HostName of the first pass as the name. That HostName stays, even if
            # the second pass finds another one
            name = (query.address or one_of(found, "hostname")[0] or query.name).lower()
            more = self._settings(name, True)
            found = merged({"hostname": [(name, "")], **found}, more) if isinstance(more, dict) else more
        return found if isinstance(found, dict) else self._client.ask(query, found, cancel)

    def hosts(self) -> list[str]:
        """Returns the names on Host lines, without the patterns, in order."""
        with self._lock:
            roots = self._load()
        return list(dict.fromkeys(name for root in roots for name in root.names()))

    def _load(self) -> list[_File]:
        if self._roots is None:
            self._roots = [self._read(file, (), file == SYSTEM_CONFIG) for file in self._files]
        return self._roots

    def sets_keyword(self, keyword: str) -> bool:
        """Returns whether any line that lookup() has read sets this keyword, for any host."""
        return keyword.lower() in self._lines

    def _settings(self, name: str, final: bool) -> Settings | str:
        """Returns the settings of this name, or the FILE:LINE of a deferred line."""
        found: Settings = {}
        for root in self._roots or ():
            for item in root.settings(name, final):
                if isinstance(item, str):
                    return item
                key, values, where = item
                if key in SEVERAL or key not in found:
                    found.setdefault(key, []).extend((value, where) for value in values)
        return found

    def _read(self, file: Path, above: tuple[Path, ...], system: bool) -> _File:
        result = _File()
        section = result.add(_Section())
        data = b""
        try:
            with file.open("rb") as opened:
                info = os.fstat(opened.fileno())
                data = opened.read()
            if info.st_mode & 0o022 or info.st_uid not in (0, os.getuid()):
                self._defer_to_ssh(section, f"{file}:1")
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise ConnectError(f"cannot read it: {error.strerror}", where=str(file), kind="config") from error
        if not above and file == self._files[0]:
            data = self._text = self._edit(data) if self._edit else data
        for number, raw in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
            line = raw.rstrip(" \t\r\f")
            if line and not line.lstrip(" \t").startswith("#"):
                section = self._read_line(line, f"{file}:{number}", result, section, (*above, file), system)
        return result

    def _read_line(
        self, line: str, where: str, into: _File, section: _Section, above: tuple[Path, ...], system: bool
    ) -> _Section:
        """Reads one line. Returns the section that the next line belongs to."""
        match = _LINE.fullmatch(line)
        key, value = (match[1].lower(), match[2]) if match else ("", "")
        self._lines.setdefault(key, {}).setdefault(value, where)
        if key == "host" and _PATTERNS.fullmatch(value):
            return into.add(_Section(tuple(value.split())))
        if key == "match" and value.lower() in ("all", "final all", "final"):
            self._final = self._final or value.lower() != "all"
            return into.add(_Section(final=value.lower() != "all"))
        if key in ("host", "match"):
            section = into.add(_Section())
            self._defer_to_ssh(section, where)
        elif key == "include":
            self._include(value, where, section, above, system)
        elif key in FOLLOWED and FOLLOWED[key].fullmatch(value):
            section.items.append((key, value.split(), where))
        else:
            form = (IRRELEVANT_SYSTEM if system else IRRELEVANT).get(key)
            if not form or not form.fullmatch(value):
                self._defer_to_ssh(section, where)
        return section

    def _include(self, value: str, where: str, section: _Section, above: tuple[Path, ...], system: bool) -> None:
        plain = re.fullmatch(r"[\w./~*?+ \t-]+", value, re.ASCII) is not None
        if not plain or (system and "~" in value) or re.search(r"(?:^|[ \t])~(?!/)", value):
            self._defer_to_ssh(section, where)
        base = SYSTEM_CONFIG.parent if system else self.home / ".ssh"
        for part in split_value(value):
            for found in map(Path, sorted(glob(str(base / tilde(part, self.home))))):  # noqa: PTH207
                if found.is_file() and found not in above and len(above) <= INCLUDE_DEPTH:
                    section.items.append(self._read(found, above, system))
                else:
                    self._defer_to_ssh(section, where)

    def _defer_to_ssh(self, section: _Section, where: str) -> None:
        """Defers to ssh the hosts that this line concerns."""
        section.items.append(where)
        self._first_deferred = self._first_deferred or where
