"""Reads the file of `--wheels requirements.txt`, and makes another file of it for pip. The new file has a few kinds of
options with checked values, then one ASCII requirement a line: the name of a package, or a wheel. A line that cannot be
written so is refused.

pip runs the setup of folders, editable projects, repositories and source archives, also with --only-binary. It reads a
file in ways that a user does not see: it ends lines where str.splitlines does, takes the encoding from a comment, and
looks for names among files. https://pip.pypa.io/en/stable/reference/requirements-file-format/ describes such files.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from fleet.errors import UsageError
from fleet.inventory.fields import printable
from fleet.node.base.files import open_regular
from fleet.ops.wheels.wheel import DAMAGE, check_kind, reason

INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
PLACES = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
}
PATTERNS = {"--trusted-host": r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?", "--only-binary": r":all:|[\w.,-]+"}
# options that decide on the origin and the choice of wheels: those with a value, and those without one
VALUED = (*INCLUDES, *PLACES, *PATTERNS)
PLAIN = ("--pre", "--prefer-binary", "--require-hashes", "--no-index")
URL = r"(?i:https?|file)://[A-Za-z0-9._~:/?@!&()*+,=%\[\]-]+"
# a wheel by its place: NAME[EXTRAS] @ PLACE.whl?QUERY#FRAGMENT[EXTRAS] ; MARKER. Only PLACE is required
WHEEL = re.compile(
    r"(?:(?P<name>[\w.-]+)(?:\s*(?P<extras>\[[^]]*\]))?\s*@\s*)?(?P<place>[^;#?]+\.whl)(?P<query>\?[^\s;#]*)?"
    r"(?:#(?P<fragment>[^\s;]*))?(?:\s*(?P<more>\[[^]]*\]))?\s*(?:;(?P<marker>.*))?"
)
ARCHIVE = r"\.(zip|whl|tar|tgz|tbz|txz|tlz|tar\.(gz|bz2|xz|lzma|lz))"
# text that pip reads as a path, a URL or an archive, and not as a name
PLACE = rf"(?i)[/\\]|^\.|{ARCHIVE}\s*(\[|;|$)"
# a line that pip reads unchanged: it has no two spaces in a row, no option and no comment
PLAIN_LINE = r"[!-~]+( [!-\"$-,.-~][!-~]*)*"
HASH = re.compile("(md5|sha1|sha224|sha256|sha384|sha512)=[0-9A-Fa-f]+")  # of a URL
STRONG = re.compile("(sha256|sha384|sha512):[0-9A-Fa-f]+")  # of --hash
BUILD = "build it on a node and hand out the wheel: fleet build PATH"
CORRECT = "correct that line"
RUNS = "would run a package's code on this machine"
NO_WHEEL = "is no wheel: pip would run its code on this machine"
FILES, BYTES, LINE_LENGTH = 100, 2 << 20, 1 << 16


class _Refused(Exception):
    """Is raised for a line that is refused. Its arguments: the fault of the line, and the hint."""


class Requirements:
    """Holds a requirements file with its included files. wheels: the wheels on this machine that the files name."""

    def __init__(self, path: Path) -> None:
        self.wheels: dict[Path, None] = {}
        self._options: dict[str, str] = {}
        self._lines: dict[bool, dict[str, None]] = {False: {}, True: {}}
        self._seen: set[tuple[Path, bool]] = set()
        self._left = BYTES
        self._read(path, None, False, ())

    def text(self) -> str:
        """Returns the text for pip's -r. Of several --index-url, it has only the last one. It has every
        --extra-index-url."""
        options = sorted(self._options.values(), key=lambda line: not line.startswith("--index-url "))
        return "".join(f"{line}\n" for line in (*options, *self._lines[False]))

    def constraints(self) -> str:
        """Returns the text for pip's -c."""
        return "".join(f"{line}\n" for line in self._lines[True])

    def wanted(self) -> list[str]:
        """Returns the requirements and constraints."""
        return [line.partition(" --hash=")[0] for line in (*self._lines[False], *self._lines[True])]

    def _read(self, path: Path, where: str | None, constraint: bool, within: tuple[Path, ...]) -> None:
        """Reads a file and its included files. where: the FILE:LINE that includes this file, or None. constraint:
        whether it holds constraints. within: the files that include it."""
        path = Path(os.path.realpath(path))
        if path in within or len(self._seen) == FILES:
            why = "it includes itself" if path in within else f"more than {FILES} files are included"
            raise UsageError(f"cannot read {path}: {why}", where=where, hint=CORRECT)
        if (path, constraint) in self._seen:
            return
        self._seen.add((path, constraint))
        for number, line in _lines(self._text(path, where)):
            at = f"{path}:{number}"
            try:
                plain = _plain(line)
                if plain.startswith("-"):
                    for included, constrains in self._take_options(plain, path.parent):
                        self._read(included, at, constrains, (*within, path))
                elif plain:
                    self._lines[constraint][self._requirement(plain, path.parent)] = None
            except _Refused as refused:
                shown = printable(line if len(line) < 200 else f"{line[:200]}...")
                why, hint = refused.args
                raise UsageError(f"'{shown}' {why}", where=at, hint=hint) from None

    def _text(self, path: Path, where: str | None) -> str:
        try:
            with open_regular(str(path)) as file:
                data = file.read(self._left + 1)
            self._left -= len(data)
            if self._left < 0:
                raise ValueError(f"more than {BYTES >> 20} MiB, with what it includes")
            return data.decode("utf-8-sig")
        except (OSError, ValueError) as error:
            why, hint = reason(error), CORRECT if where else "give a folder of wheels, or a requirements file"
            if isinstance(error, UnicodeDecodeError):
                why, hint = "not UTF-8 text", "save it as UTF-8; where it was UTF-16: iconv -f UTF-16 -t UTF-8 FILE"
            raise UsageError(f"cannot read {path}: {why}", where=where, hint=hint) from error

    def _take_options(self, line: str, folder: Path) -> Iterator[tuple[Path, bool]]:
        """Yields (included file, whether it has constraints) for a line of options. Keeps the other options."""
        try:
            tokens = shlex.split(line)
        except ValueError as error:
            raise _Refused(f"cannot be read: {error}", CORRECT) from None
        while tokens:
            token = tokens.pop(0)
            name, given, value = token.partition("=") if token.startswith("--") else (token[:2], token[2:], token[2:])
            if name in PLAIN and not given:
                self._options[name] = name
                continue
            if name not in VALUED or not (given or tokens):
                runs = re.match("-e|--e|--no-b", token)
                known = f"it takes {', '.join((*VALUED, *PLAIN))}"
                raise _Refused(RUNS if runs else "is no option that fleet hands to pip", BUILD if runs else known)
            value = value if given else tokens.pop(0)
            if name in INCLUDES:
                if "://" in value:
                    raise _Refused("includes a file that is not on this machine", "download it first")
                yield folder / value, INCLUDES[name]
            elif name in PATTERNS and re.fullmatch(PATTERNS[name], value, re.ASCII):
                self._options[value] = f"{name} {value}"
            elif name in PLACES and ((path := _local(value, folder)) is None or os.path.isdir(path)):
                url = Path(os.path.realpath(path)).as_uri() if path else value
                self._options["" if name in ("-i", "--index-url") else url] = f"{PLACES[name]} {url}"
            else:
                raise _Refused("has a value that fleet does not hand to pip", "it takes URLs, folders and names")

    def _requirement(self, line: str, folder: Path) -> str:
        """Returns the line of a requirement for pip."""
        text, *hashes = map(str.rstrip, re.split(r"\s-{2}hash[= ]\s*", line))  # \s+ would be quadratic
        if other := re.search(r"\s(--?\w[\w-]*)", text if all(map(STRONG.fullmatch, hashes)) else line):
            raise _Refused(
                f"has an option that fleet does not hand to pip: {other[1]}", f"leave that option out, or {BUILD}"
            )
        match = WHEEL.fullmatch(text)
        try:
            text = self._wheel(match, folder) if match else text
            parsed = Requirement(text)
        except (InvalidRequirement, RecursionError) as error:
            if re.search(PLACE, text):
                raise _Refused(NO_WHEEL, BUILD) from None
            raise _Refused(f"is an invalid requirement: {str(error).splitlines()[0]}", CORRECT) from None
        if not match and (
            parsed.url or re.search(f"(?i){ARCHIVE}$", f"{parsed.name}\n{parsed.specifier}", re.MULTILINE)
        ):
            raise _Refused(NO_WHEEL, BUILD)
        extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
        place = f" @ {parsed.url}" if parsed.url else str(parsed.specifier)
        plain = f"{canonicalize_name(parsed.name)}{extras}{place}" + (f" ; {parsed.marker}" if parsed.marker else "")
        quoted = any('"' in string for string in re.findall(r"\"[^\"]*\"|'([^']*)'", text))
        if quoted or not re.fullmatch(PLAIN_LINE, plain) or re.search(r"[\\$]", plain):
            raise _Refused("holds what pip would read in another way", CORRECT)
        return plain + "".join(f" --hash={digest}" for digest in hashes)

    def _wheel(self, match: re.Match[str], folder: Path) -> str:
        """Returns NAME @ URL for a wheel that is given by its path or URL."""
        path, url = _local(match["place"], folder), match["place"]
        try:
            found = parse_wheel_filename(path.name if path else unquote(url.rpartition("/")[2]))[0]
            if path:
                path = Path(os.path.realpath(path.parent), path.name)
                check_kind(path)
                self.wheels[path], url = None, path.as_uri()
        except DAMAGE as error:
            raise _Refused(f"is no wheel: {reason(error)}", BUILD) from None
        parts = [part for part in (match["fragment"] or "").split("&") if part and not part.startswith("egg=")]
        if not all(HASH.fullmatch(part) for part in parts) or not re.fullmatch(URL, url + (match["query"] or "")):
            raise _Refused("is no URL of a wheel", CORRECT)
        marker = f" ; {match['marker']}" if match["marker"] else ""
        named = f"{match['name'] or found}{match['extras'] or match['more'] or ''}"
        return f"{named} @ {url}{match['query'] or ''}{'#' * bool(parts)}{'&'.join(parts)}{marker}"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields (number of the first line, logical line with its comment). Joins lines as pip does."""
    joined, begun = "", 0
    for number, raw in enumerate([*text.replace("\r\n", "\n").split("\n"), ""], 1):
        begun = begun if joined else number
        comment = re.match(r"\s*#", raw)
        if raw.endswith("\\") and not comment:
            joined += raw[:-1]
            continue
        yield begun, f"{joined} {raw}" if comment and joined else joined + raw
        joined = ""


def _plain(line: str) -> str:
    """Returns a line without its comment, with its variables filled in. Refuses, even in a comment, a character that
    only pip treats as the end of a line: the text after it would be a requirement that a user does not see."""
    if odd := re.search(r"[\0\v\f\r\x1c-\x1e\x85\u2028\u2029]", line):
        raise _Refused(f"holds the character U+{ord(odd[0]):04X}", "remove it")
    if len(line) > LINE_LENGTH:
        raise _Refused(f"is longer than {LINE_LENGTH} characters", "one requirement a line")
    plain = re.sub(r"(^|\s)#.*$", "", line).strip()
    for name in set(re.findall(r"\$\{([A-Z0-9_]+)\}", plain)):
        if not os.environ.get(name):
            raise _Refused(f"names the variable {name}, which is not set", f"export {name}=...")
        plain = plain.replace(f"${{{name}}}", os.environ[name])
    if not plain.replace("\t", "").isprintable():
        raise _Refused("holds what is not printable", CORRECT)
    return plain


def _local(value: str, folder: Path) -> Path | None:
    """Returns the path that a value names on this machine, or None for a URL. A path is relative to `folder`, that of
    the requirements file, or else to the current folder. Raises _Refused for any other value."""
    scheme = value.partition(":")[0].lower() if "://" in value else ""
    if scheme in ("http", "https") and re.fullmatch(URL, value):
        return None
    there = re.fullmatch(r"(?i:file)://(?i:localhost)?(/.*)", value)
    if not value or (scheme and not there):
        raise _Refused("names no place that fleet hands to pip", "it takes paths and http, https and file URLs")
    path = Path(unquote(there[1], errors="surrogateescape")) if there else folder / value
    return path if there or os.path.exists(path) else Path(os.path.abspath(value))
