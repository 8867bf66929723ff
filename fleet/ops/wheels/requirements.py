"""requirements.txt, read by pip on the head: what would make pip run a package's own code here is refused, by its line.

Wheels are data to pip, but it runs the setup of folders, editable projects, repositories and source archives, also
with --only-binary. https://pip.pypa.io/en/stable/reference/requirements-file-format/ is what such a file may hold.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from fleet.errors import UsageError

INCLUDES = ("-r", "-c", "--requirement", "--constraint")
# options with a value and without one that decide where wheels come from and which are taken
VALUED = (*INCLUDES, "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--only-binary")
PLAIN = ("--pre", "--prefer-binary", "--require-hashes", "--no-index")
# what pip takes for a path, a URL or an archive, and not for a name
PLACE = r"[/\\]|^\.|\.(zip|whl|tar|tgz|tbz|txz|tlz|tar\.(gz|bz2|xz|lzma|lz))\s*(\[|$)"
BUILD = "build it on a node and hand out the wheel: fleet build PATH"


def texts(path: Path, where: str | None = None, seen: dict[Path, str] | None = None) -> Mapping[Path, str]:
    """A requirements file and all that it includes, each looked through. where: the FILE:LINE that names it."""
    path, seen = path.resolve(), {} if seen is None else seen
    if path in seen:
        return seen
    try:
        seen[path] = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        hint = "correct that line" if where else "give a folder of wheels, or a requirements file"
        raise UsageError(f"cannot read {path}: {reason}", where=where, hint=hint) from error
    for number, line in lines(seen[path]):
        at = f"{path}:{number}"
        for included in _options(line, at) if line.startswith("-") else _requirement(line, at):
            texts(path.parent / included, at, seen)
    return seen


def lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, logical line) as pip joins and strips them; none that are empty."""
    joined, begun = "", 0
    for number, raw in enumerate([*text.replace("\r\n", "\n").split("\n"), ""], 1):
        begun = begun if joined else number
        comment = re.match(r"\s*#", raw)
        if raw.endswith("\\") and not comment:
            joined += raw[:-1]
            continue
        line = re.sub(r"(^|\s+)#.*$", "", f"{joined} {raw}" if comment and joined else joined + raw).strip()
        joined = ""
        if line:
            yield begun, line


def _refuse(line: str, where: str, why: str, hint: str) -> UsageError:
    return UsageError(f"'{line}' {why}", where=where, hint=hint)


def _options(line: str, where: str) -> Iterator[str]:
    """The files that a line of options includes."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _refuse(line, where, f"cannot be read: {error}", "correct that line") from None
    while words:
        word = words.pop(0)
        name, given, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name in PLAIN and not given:
            continue
        if name not in VALUED or not (given or words):
            why = (
                "would run a package's code on this machine"
                if re.match("-e|--e|--no-b", word)
                else "is no option that fleet hands to pip"
            )
            raise _refuse(line, where, why, BUILD if "run" in why else f"it takes {', '.join(VALUED + PLAIN)}")
        value = value if given else words.pop(0)
        if name in INCLUDES:
            if "://" in value:
                raise _refuse(line, where, "includes a file that is not on this machine", "download it first")
            yield value


def _requirement(line: str, where: str) -> tuple[()]:
    """Nothing, where it is a name that indexes know, or a wheel."""
    text, *options = re.split(r"\s+(?=--?\w)", line)
    for option in options:
        if not option.startswith("--hash"):
            raise _refuse(
                line,
                where,
                f"has an option that fleet does not hand to pip: {option.split('=')[0]}",
                "leave that option out, or " + BUILD,
            )
    place = text.partition(" ; ")[0].rstrip()
    with contextlib.suppress(InvalidRequirement):  # a path, or nothing that pip takes either
        place = Requirement(text).url or place
    if re.search(PLACE, place) and not re.sub(r"[#?].*$", "", place).endswith(".whl"):
        raise _refuse(line, where, "is no wheel: pip would run its code on this machine", BUILD)
    return ()
