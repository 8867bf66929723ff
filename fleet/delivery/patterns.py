"""Reads and matches ignore patterns as git does (dir.c, wildmatch.c), byte for byte. tests/fuzz/ignore.py tests that.

If several patterns match a path, the last one in the deepest ignore file counts. The content of an ignored folder is
not looked at.
"""

from __future__ import annotations

import errno
import os
import re
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet import own
from fleet.errors import UsageError
from fleet.node.base.files import open_regular

BOM = b"\xef\xbb\xbf"
_ALPHABET, _DIGITS, _PUNCTUATION = (text.encode() for text in (string.ascii_letters, string.digits, string.punctuation))
CLASSES = {
    None: b"",
    b"alnum": _ALPHABET + _DIGITS,
    b"alpha": _ALPHABET,
    b"blank": b" \t",
    b"cntrl": bytes([*range(32), 127]),
    b"digit": _DIGITS,
    b"graph": _ALPHABET + _DIGITS + _PUNCTUATION,
    b"lower": string.ascii_lowercase.encode(),
    b"print": _ALPHABET + _DIGITS + _PUNCTUATION + b" ",
    b"punct": _PUNCTUATION,
    b"space": b" \t\n\r",
    b"upper": string.ascii_uppercase.encode(),
    b"xdigit": string.hexdigits.encode(),
}
# a token of a glob; MEMBER: a member of a set in brackets
TOKEN = re.compile(
    rb"(?P<folders>(?<![^/])\*\*+/)|(?P<deep>(?<![^/])\*\*+(?=\Z|\\/))|(?P<some>\*+)|(?P<one>\?)|(?P<set>\[)|\\?(?P<char>.)",
    re.DOTALL,
)
WILD = {"folders": rb"(?:.*?/)??", "deep": rb".*?", "some": rb"[^/]*?", "one": rb"[^/]"}
MEMBER = re.compile(rb"\[:(?P<kind>[^]]*):\]|(?P<low>\\?.)(?:-(?P<high>\\.|[^]\\]))?", re.DOTALL)


class Pattern(NamedTuple):
    """Holds one pattern. regex: matches the last name of a path if `name` is true, and the absolute path otherwise.
    negated: the pattern begins with "!", and includes paths again. folder: the pattern matches folders only. literal:
    the fixed beginning of a matching name or path, up to the first wildcard. where: FILE:LINE."""

    regex: re.Pattern[bytes]
    negated: bool
    name: bool
    folder: bool
    literal: bytes
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def parse(line: bytes, where: str, base: bytes) -> Pattern | None:
    """Returns the pattern of a line of an ignore file; None if the line holds no pattern. base: the folder that the
    pattern is relative to, with a "/" at its end. Raises ValueError if the pattern can match nothing."""
    line = _without_spaces(line.partition(b"\0")[0])
    negated = line[:1] == b"!"
    glob = line[negated:]
    folder = glob.endswith(b"/")
    glob = glob[: len(glob) - folder]
    name = b"/" not in glob
    glob = glob[glob.startswith(b"/") :]
    if not glob or line[:1] == b"#":
        return None
    special = re.search(rb"[*?\[\\]", glob)
    cut = special.start() if special else len(glob)
    literal = glob[:cut] if name else base + glob[:cut]
    # as git does: what follows the literal beginning is a pattern of its own, so that "a/b**" reaches any depth
    regex = re.compile(re.escape(literal) + _translate(glob[cut:]), re.DOTALL)
    return Pattern(regex, negated, name, folder, literal, where, os.fsdecode(line))


def _without_spaces(line: bytes) -> bytes:
    """Returns a line without the spaces at its end, except those that a backslash keeps."""
    bare = line.rstrip(b" ")
    keeps = (len(bare) - len(bare.rstrip(b"\\"))) % 2
    return line[: len(bare) + keeps]


def _translate(glob: bytes) -> bytes:
    """Returns a regular expression that takes at most quadratic time. The text between two wildcards is matched at the
    first place where it fits, and never at a later one. No match is missed: the wildcard after the text can match
    everything up to that later place."""
    parts, at = [[b"", b""]], 0  # for each wildcard: its own expression, and that of the text after it
    deep = [0]  # indexes of the wildcards that match a "/", too
    while token := TOKEN.match(glob, at):
        at, kind = token.end(), token.lastgroup or ""
        if kind == "set":
            at, members = _members(glob, at)
            parts[-1][1] += b"[" + b"".join(rb"\x%02x" % code for code in members) + b"]" if members else b"(?!)"
        elif token[0] == b"\\":
            raise ValueError("a backslash with nothing after it")
        elif kind in ("folders", "deep", "some"):
            deep += [len(parts)] if kind != "some" else []
            parts.append([WILD[kind], b""])
        else:
            parts[-1][1] += WILD.get(kind) or re.escape(token["char"])
    regex = b""
    for begin, end in zip(deep, [*deep[1:], len(parts)], strict=True):
        last = end == len(parts)
        wild, fixed = parts[begin]
        inner = [own + after for own, after in parts[begin + 1 : end]]
        inner = [_once(one, begin + 1 + n) for n, one in enumerate(inner[:-1])] + inner[-1:]
        one = wild + fixed + b"".join(inner)
        regex += one if last else _once(one, begin)
    return regex


def _once(regex: bytes, number: int) -> bytes:
    """Returns the equivalent of an atomic group: Python has such groups only from 3.11 on."""
    return b"(?=(?P<g%d>%s))(?P=g%d)" % (number, regex, number)


def _members(glob: bytes, at: int) -> tuple[int, list[int]]:
    """Returns (index after the closing bracket, the bytes that match)."""
    negated = glob[at : at + 1] in (b"!", b"^")
    first = at = at + negated
    found: set[int] = set()
    while at == first or glob[at : at + 1] != b"]":
        member = MEMBER.match(glob, at)
        if member is None or member["kind"] not in CLASSES:
            raise ValueError("a bracket that does not end")
        at = member.end()
        found.update(CLASSES[member["kind"]])
        if member["low"]:
            low, high = member["low"][-1], (member["high"] or member["low"])[-1]
            found.update((low, *range(low, high + 1)))
    return at + 1, sorted((set(range(1, 256)) - found if negated else found) - {ord("/")})


def read_bytes(path: str, follow: bool = False) -> bytes | None:
    """Returns the bytes of an ignore file. Returns None, as git does, if the file is missing or is a folder. Without
    `follow`, it also returns None for a link. Raises UsageError for a pipe or a device, and never waits for one."""
    try:
        with open_regular(path, 0 if follow else os.O_NOFOLLOW) as file:
            return own.bounded(file)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        is_other = error.errno == errno.EINVAL
        if gone or os.path.isdir(path) or os.path.islink(path) and not is_other:
            return None
        if is_other:
            raise UsageError(
                f"{path} is no file that holds patterns, but a pipe or a device", hint="remove it"
            ) from None
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def read_patterns(path: str, base: str, ours: bool = False, follow: bool = False) -> list[Pattern]:
    """Returns the patterns of an ignore file, the last one first. base: see parse(). ours: the file is a .fleetignore.
    In a .fleetignore, a pattern that can match nothing raises UsageError. In other files it is skipped, as git does.
    follow: see read_bytes()."""
    data = read_bytes(path, follow or ours)
    found = []
    for number, line in enumerate((data or b"").removeprefix(BOM).split(b"\n"), 1):
        where = f"{path}:{number}"
        try:
            if pattern := parse(line.removesuffix(b"\r"), where, os.fsencode(base)):
                found.append(pattern)
        except ValueError as error:
            if ours:
                raise UsageError(
                    f"not a pattern: {os.fsdecode(line)!r}: {error}",
                    where=where,
                    hint="correct it; a literal [ or \\ needs a \\ before it",
                ) from error
    return found[::-1]


class Scope:
    """Holds the ignore files called `name` in the folder `top` and below it. common: further files of patterns, which
    apply to the whole folder. An ignore file is read when it is first needed. Paths are absolute; those of folders end
    with "/". empty: no pattern was read so far."""

    def __init__(self, top: str, name: str, common: Sequence[str | Path] = ()) -> None:
        self._top, self._name = top, name
        self._common = [p for path in reversed(common) for p in read_patterns(os.fspath(path), top, follow=True)]
        self._of: dict[str, list[Pattern]] = {}
        self.empty = not self._common

    def of(self, folder: str, there: bool = True) -> list[Pattern]:
        """Returns the patterns that apply in a folder, the last one first. there: the folder may hold an ignore
        file."""
        if folder not in self._of:
            around = self._common if folder == self._top else self.of(_above(folder[:-1]))
            own = read_patterns(folder + self._name, folder, self._name == ".fleetignore") if there else []
            self._of[folder] = own + around if own else around
            self.empty = self.empty and not own
        return self._of[folder]

    def last(self, path: str, folder: bool) -> Pattern | None:
        """Returns the last pattern that matches this very path. Patterns that match its folders do not count."""
        patterns = self.of(_above(path))
        if patterns:
            raw, name = os.fsencode(path), os.fsencode(path.rpartition("/")[2])
            for pattern in patterns:
                if (folder or not pattern.folder) and pattern.regex.fullmatch(name if pattern.name else raw):
                    return pattern
        return None

    def reaches(self, path: str) -> bool:
        """Returns whether a pattern may include a path in this ignored folder again."""
        below = os.fsencode(path) + b"/"
        return any(
            one.negated and (one.name or below.startswith(one.literal) or one.literal.startswith(below))
            for one in self.of(_above(path))
        )


def _above(path: str) -> str:
    """Returns the folder that a path lies in."""
    return path[: path.rindex("/") + 1]


def above(paths: Iterable[str]) -> set[str]:
    """Returns all folders above these paths, without the uppermost one, ""."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found
