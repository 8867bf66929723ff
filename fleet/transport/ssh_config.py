"""ssh_config(5): the settings that hold for one name. Needs no paramiko.

paramiko.SSHConfig knows no Include, looks the head's own name up in the DNS to expand every IdentityFile, and
runs `Match exec`, which fleet never does.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from glob import glob
from pathlib import Path

from fleet.errors import ConnectError

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
INCLUDE_DEPTH = 16

# {lower-case keyword: [(value, "FILE:LINE"), ...]}, the value that counts first
Settings = Mapping[str, list[tuple[str, str]]]
# ("host" or "match", its arguments, "FILE:LINE")
_Condition = tuple[str, tuple[str, ...], str]


@dataclass(frozen=True)
class _Line:
    """One setting. conditions: every Host and Match line it stands under."""

    conditions: tuple[_Condition, ...]
    key: str
    value: str
    where: str


class SshConfig:
    """The user's and the system's ssh_config, read once; `home` stands for ~."""

    def __init__(self, home: Path, files: tuple[Path, ...] | None = None) -> None:
        self.home = home
        self.local_user = pwd.getpwuid(os.getuid()).pw_name
        self.local_host = socket.gethostname().split(".")[0]
        self._files = files if files is not None else (home / ".ssh/config", SYSTEM_CONFIG)

    @cached_property
    def _lines(self) -> tuple[_Line, ...]:
        return tuple(line for file in self._files for line in self._read(file, (), 0))

    def _read(self, file: Path, conditions: tuple[_Condition, ...], depth: int) -> Iterator[_Line]:
        try:
            text = file.read_text("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise ConnectError(f"cannot read it: {error.strerror}", where=str(file), kind="config") from error
        outer = conditions
        for number, raw in enumerate(text.splitlines(), 1):
            match = re.match(r"\s*([A-Za-z]\w*)(?:\s*=\s*|\s+)(.+?)\s*$", raw)
            if not match or raw.lstrip().startswith("#"):
                continue
            key, value, where = match[1].lower(), match[2], f"{file}:{number}"
            if key in ("host", "match"):
                conditions = (*outer, (key, tuple(words(value, where)), where))
            elif key == "include":
                for pattern in words(value, where):
                    if depth >= INCLUDE_DEPTH:
                        raise ConnectError("Include goes too deep", where=where, kind="config")
                    for found in sorted(glob(str(self._include_path(pattern, file)))):  # noqa: PTH207
                        yield from self._read(Path(found), conditions, depth + 1)
            else:
                yield _Line(conditions, key, value, where)

    def _include_path(self, pattern: str, file: Path) -> Path:
        base = SYSTEM_CONFIG.parent if file.is_relative_to(SYSTEM_CONFIG.parent) else self.home / ".ssh"
        return base / self.expand_home(pattern)

    def expand_home(self, text: str) -> str:
        """~ is `home`, ~user what the system says."""
        if text == "~" or text.startswith("~/"):
            return str(self.home) + text[1:]
        return os.path.expanduser(text)  # noqa: PTH111

    def lookup(self, name: str) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
        """{lower-case keyword: [(value, "FILE:LINE"), ...]}, the value that counts first; and notes."""
        found: dict[str, list[tuple[str, str]]] = {}
        notes: list[str] = []
        for line in self._lines:
            if all(self._holds(condition, name, found, notes) for condition in line.conditions):
                found.setdefault(line.key, []).append((line.value, line.where))
        return found, notes

    def _holds(
        self, condition: _Condition, name: str, found: Settings, notes: list[str]
    ) -> bool:
        kind, arguments, where = condition
        if kind == "host":
            return _matches(arguments, name)
        rest = list(arguments)
        while rest:
            word = rest.pop(0).lower()
            negated, word = word.startswith("!"), word.lstrip("!")
            if word in ("all", "final", "canonical"):
                result = word == "all"
            else:
                patterns = tuple((rest.pop(0) if rest else "").split(","))
                if word == "host":
                    result = _matches(patterns, first_word(found, "hostname", name))
                elif word == "originalhost":
                    result = _matches(patterns, name)
                elif word == "user":
                    result = _matches(patterns, first_word(found, "user", self.local_user))
                elif word == "localuser":
                    result = _matches(patterns, self.local_user)
                else:
                    # exec would run a command with a name from the inventory in it
                    note = f"{where}: 'Match {word}' is not followed by fleet"
                    if note not in notes:
                        notes.append(note)
                    return False
            if result == negated:
                return False
        return True


def first_word(found: Settings, key: str, default: str) -> str:
    if key not in found:
        return default
    value, where = found[key][0]
    return (words(value, where) or [""])[0]


def words(value: str, where: str) -> list[str]:
    try:
        return shlex.split(value, comments=True)
    except ValueError as error:
        raise ConnectError(f"{error}: {value}", where=where, kind="config") from error


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    """ssh_config patterns: * and ?, one that begins with ! and matches excludes."""
    name = name.lower()
    plain = [p.lower().replace("[", "[[]") for p in patterns]
    if any(p.startswith("!") and fnmatchcase(name, p[1:]) for p in plain):
        return False
    return any(not p.startswith("!") and fnmatchcase(name, p) for p in plain)
