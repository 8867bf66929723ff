"""Ignore patterns as git reads and matches them (dir.c, wildmatch.c), byte for byte. tests/fuzz/ignore.py holds that.

Of the patterns that have a say about a path the last of the deepest file counts; what is in a folder that is ignored
is not looked at.
"""

from __future__ import annotations

import os
import re
import stat
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fleet.errors import UsageError

BOM = b"\xef\xbb\xbf"
_NEVER = re.compile(rb"(?!)")
_SPACE = " \t\n\r"
CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, [*range(32), 127])),
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": _SPACE,
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


class Pattern(NamedTuple):
    """name: it is about the last name of a path only. folder: about folders only. literal: what it begins with before
    any wildcard. where: file:line."""

    regex: re.Pattern[bytes]
    negated: bool
    name: bool
    folder: bool
    literal: bytes
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Malformed(ValueError):
    """A pattern that can match nothing."""


def parse(line: bytes, where: str) -> Pattern | None:
    """One line of an ignore file; None where it holds none. Malformed."""
    line = _without_spaces(line.partition(b"\0")[0])
    if not line or line[:1] == b"#":
        return None
    negated = line[:1] == b"!"
    glob = line[negated:]
    folder = glob.endswith(b"/")
    glob = glob[: len(glob) - folder]
    name = b"/" not in glob
    glob = glob[glob.startswith(b"/") :]
    if not glob:
        return None
    special = re.search(rb"[*?\[\\]", glob)
    cut = special.start() if special else len(glob)
    # as git does: what follows the literal beginning is a pattern of its own, so that "a/b**" reaches any depth
    regex = re.escape(glob[:cut]) + (_translate(glob[cut:]) if special else b"")
    return Pattern(re.compile(regex, re.DOTALL), negated, name, folder, glob[:cut], where, os.fsdecode(line))


def _without_spaces(line: bytes) -> bytes:
    """Without spaces at its end that no backslash keeps."""
    at = end = 0
    while at < len(line):
        if line[at] == ord("\\"):
            at += 1
            if at == len(line):
                return line
            end = at + 1
        elif line[at] != ord(" "):
            end = at + 1
        at += 1
    return line[:end]


def _translate(glob: bytes) -> bytes:
    parts, at = [], 0
    while at < len(glob):
        begin, one = at, glob[at : at + 1]
        at += 1
        if one == b"*":
            while glob[at : at + 1] == b"*":
                at += 1
            rest = glob[at : at + 2]
            deep = (
                at - begin > 1
                and glob[begin - 1 : begin] in (b"", b"/")
                and (rest[:1] in (b"", b"/") or rest == b"\\/")
            )
            if deep and rest[:1] == b"/":
                parts.append(rb"(?:.*/)?")
                at += 1
            else:
                parts.append(rb".*" if deep else rb"[^/]*")
        elif one == b"?":
            parts.append(rb"[^/]")
        elif one == b"[":
            at, members = _members(glob, at)
            parts.append(b"[" + b"".join(rb"\x%02x" % code for code in members) + b"]" if members else b"(?!)")
        else:
            if one == b"\\":
                one = glob[at : at + 1]
                at += 1
                if not one:
                    raise Malformed("a backslash with nothing behind it")
            parts.append(re.escape(one))
    return b"".join(parts)


def _members(glob: bytes, at: int) -> tuple[int, list[int]]:
    """(where what is behind the closing bracket begins, the bytes that match)"""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    found: set[int] = set()
    before, first = 0, at
    try:
        while at == first or glob[at] != ord("]"):
            code = glob[at]
            if code == ord("\\"):
                at += 1
                code = glob[at]
                found.add(code)
            elif code == ord("-") and before and glob[at + 1] != ord("]"):
                at += 2 if glob[at + 1] == ord("\\") else 1
                found.update(range(before, glob[at] + 1))
                code = 0
            elif (
                glob[at : at + 2] == b"[:" and glob[(end := glob.index(b"]", at + 2)) - 1] == ord(":") and end > at + 2
            ):
                found.update(CLASSES[glob[at + 2 : end - 1].decode("ascii")].encode())
                at, code = end, 0
            else:
                found.add(code)
            before = code
            at += 1
    except (LookupError, ValueError):
        raise Malformed("a bracket that does not end") from None
    return at + 1, sorted((set(range(1, 256)) - found if negated else found) - {ord("/")})


def read_bytes(path: str, follow: bool = False) -> bytes | None:
    """An ignore file's; None where there is none, and of a folder or, unless `follow`, a link, as git has it. It waits
    for nothing: a pipe is a UsageError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) or os.path.islink(path):
            return None
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        with os.fdopen(fd, "rb") as file:
            return file.read()
    os.close(fd)
    if stat.S_ISDIR(mode):
        return None
    raise UsageError(f"{path} is no file that holds patterns, but a pipe or a device", hint="remove it")


def read_patterns(path: str, ours: bool = False, follow: bool = False) -> list[Pattern]:
    """ours: a .fleetignore, in which what can match nothing is a UsageError; to git it is nothing."""
    data = read_bytes(path, follow or ours)
    found = []
    for number, line in enumerate((data or b"").removeprefix(BOM).split(b"\n"), 1):
        where = f"{path}:{number}"
        try:
            pattern = parse(line.removesuffix(b"\r"), where)
        except Malformed as error:
            if ours:
                raise UsageError(
                    f"not a pattern: {os.fsdecode(line)!r}: {error}",
                    where=where,
                    hint="correct it; a literal [ or \\ needs a \\ before it",
                ) from error
            continue
        if pattern:
            found.append(pattern)
    return found


class Scope:
    """The ignore files of that name below `top`, read when they are asked for, and those that hold for all of it.
    Paths are relative to top."""

    def __init__(self, top: str, name: str, common: Iterable[str | Path] = ()) -> None:
        self._top, self._name, self._ours = top, name, name == ".fleetignore"
        self._common = [pattern for path in common for pattern in read_patterns(os.fspath(path), follow=True)]
        self._of: dict[str, list[Pattern]] = {}

    def last(self, path: str, folder: bool) -> Pattern | None:
        """The pattern that has the last say about this very path, whatever is said about the folders it is in."""
        inside, _, name = path.rpartition("/")
        raw, raw_name = os.fsencode(path), os.fsencode(name)
        while True:
            patterns = self._of.get(inside)
            if patterns is None:
                patterns = self._of[inside] = read_patterns(os.path.join(self._top, inside, self._name), self._ours)
            relative = raw[len(os.fsencode(inside)) + 1 :] if inside else raw
            if found := _last(patterns, relative, raw_name, folder):
                return found
            if not inside:
                return _last(self._common, raw, raw_name, folder)
            inside = inside.rpartition("/")[0]

    def negated(self, path: str) -> Iterator[tuple[bytes, Pattern]]:
        """Of the folder `path` and those above it: (where the file is, "" or "a/b/", its negated patterns)."""
        inside = path
        while True:
            base = os.fsencode(inside) + b"/" if inside else b""
            yield from ((base, pattern) for pattern in self._of.get(inside, ()) if pattern.negated)
            if not inside:
                return
            inside = inside.rpartition("/")[0]

    def without(self, inside: str) -> None:
        """There is no such file in that folder."""
        self._of.setdefault(inside, [])


def _last(patterns: list[Pattern], path: bytes, name: bytes, folder: bool) -> Pattern | None:
    for pattern in reversed(patterns):
        if (folder or not pattern.folder) and pattern.regex.fullmatch(name if pattern.name else path):
            return pattern
    return None
