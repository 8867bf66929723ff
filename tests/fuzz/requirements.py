"""Requirements drawn from a grammar of what pip understands, of what it understands by surprise, and of bytes that are
neither. fleet refuses them, or pip reads from fleet's file what fleet read from the user's: names that indexes know and
wheels, nothing that is set up. Every so often pip itself is run; a trap's setup would leave a mark."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fleet.errors import FleetError, UsageError
from fleet.ops.wheels.download import collect
from fleet.ops.wheels.requirements import Requirements
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.trap import ground
from tests.wheelmaker import python_facts

ENDS = ["\n"] * 12 + [
    "\r\n",
    "\r",
    "\f",
    "\v",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x85",
    "\u2028",
    "\u2029",
    "\\\n",
    " \\\n",
    "\0",
    "",
]
BLANKS = [" "] * 8 + ["", "  ", "\t", "\u00a0", "\u3000", "\x0c"]
NAMES = [
    "good",
    "Good",
    "evil",
    "evil.ZIP",
    "evil.zip",
    "evil-1.0.tar.gz",
    "lure",
    "treed",
    "g\u043eod",
    "a.whl",
    "-",
    ".",
]
LURES = ["lure", "zipped", "treed"]
VERSIONS = ["1.0", "2", "1.*", "1.0+evil.zip", "1.0+x.whl", "1!2", "x", "1.0 ", "${ONE}"]
PLACES = [
    "./evil",
    "evil",
    ".",
    "./dotted/.whl",
    "evil.ZIP",
    "./evil.zip",
    "links/evil-1.0.tar.gz",
    "a b/spaced-1.0-py3-none-any.whl",
    "./good-1.0-py3-none-any.whl",
    "good-1.0-py3-none-any.whl",
    "tree-1.0-py3-none-any.whl",
    "./evil-1.0-py3-none-any.whl",
    "fifo-1.0-py3-none-any.whl",
    "nosuch-1.0-py3-none-any.whl",
    "${PWD}/evil",
    "${PWD}/good-1.0-py3-none-any.whl",
    "${HERE}/evil",
    "file://${HERE}/good-1.0-py3-none-any.whl",
    "file://${HERE}/evil",
    "file:evil",
    "file:///dev/zero",
    "FILE://${HERE}/evil.ZIP",
    "https://127.0.0.1:9/evil-1.0-py3-none-any.whl",
    "https://127.0.0.1:9/evil-1.0-py3-none-any.whl/",
    "http://127.0.0.1:9/evil.zip",
    "https://127.0.0.1:9/a;b/evil-1.0-py3-none-any.whl",
    "https://127.0.0.1:9/x.zip?/evil-1.0-py3-none-any.whl",
    "https://127.0.0.1:9/%2e%2e/evil-1.0-py3-none-any%2Ewhl",
    "git+file://${HERE}/evil",
    "git+https://127.0.0.1:9/evil@x.whl",
    "hg+static-http://127.0.0.1:9/x-1.0-py3-none-any.whl",
    "~/evil",
    "evil[x]",
    "links",
    "\\evil",
    "evil/",
    "${HERE}/links",
]
FRAGMENTS = [
    "",
    "",
    "",
    "#egg=evil",
    "#subdirectory=evil",
    "#sha256=00ff",
    "#egg=good[x]&sha256=00",
    "?a=b",
    "?a=b;c",
    "?a=${ONE}#x",
]
MARKERS = [
    "python_version > '3'",
    'os_name=="posix"',
    "extra == 'x'",
    "platform_version != 'a -e ./evil'",
    "sys_platform != '#'",
    "platform_version != ' #'",
    "os_name != '\\\\'",
    "os_name != '\"'",
    "os_name != '${HERE}'",
    "(os_name != 'a' or os_name != 'b')",
    "'-e' not in os_name",
    "os_name != 'a - b'",
    "os_name != 'a  b'",
    "((((",
    "os_name != 'a\" or os_name != \"b'",
    "os_name != 'a;b'",
    "os_name != 'x --no-binary=:all:'",
    "os_name != '\u2028./evil'",
]
OPTIONS = [
    "--pre",
    "--prefer-binary",
    "--require-hashes",
    "--no-index",
    "--only-binary :all:",
    "--only-binary=:none:",
    "--only-binary evil",
    "--only-binary=good,:none:",
    "--no-binary :all:",
    "--no-binary=evil",
    "-e ./evil",
    "-e.",
    "--editable=evil",
    "--edit ./evil",
    "--use-feature=fast-deps",
    "--no-bin=:all:",
    "--global-option=x",
    "--config-settings=a=b",
    "--trusted-host 127.0.0.1:9",
    "--trusted-host '*'",
    "--trusted-host 'x -e evil'",
    "--hash=sha256:00",
    "-- ./evil",
    "--",
    "-",
    "-x",
    "--isolated",
    "--python=./evil",
]
VALUED = [
    "-r",
    "-c",
    "--requirement",
    "--constraint",
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--find",
]
FILES = [
    "more.txt",
    "less.txt",
    "r.txt",
    "./sub/../more.txt",
    "fifo",
    "/dev/zero",
    "links",
    "nosuch.txt",
    "file:more.txt",
    "more.txt -e ./evil",
]
CODINGS = [
    "# -*- coding: utf-7 -*-\n",
    "# coding: utf-16\n",
    "# coding=latin-1\n",
    "\ufeff",
    "# coding: rot13\n",
    "+AC4ALwBlAHYAaQBs",
]


class Draw:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.pick = rng, rng.choice

    def some(self, likely: float, text: str) -> str:
        return text if self.rng.random() < likely else ""

    def name(self) -> str:
        name = self.pick(NAMES[:3] if self.rng.random() < 0.7 else NAMES)
        return name + self.some(0.2, self.pick(["[x]", "[x,Y_z]", "[]", "[a b]", " [x]"]))

    def tail(self) -> str:
        marker = self.some(0.3, f"{self.pick([' ; ', ';', '; '])}{self.pick(MARKERS)}")
        return marker + self.some(0.1, f"{self.pick(BLANKS)}{self.pick(OPTIONS)}") + self.some(0.1, "  # a remark")

    def honest(self) -> str:
        marker = self.some(0.3, f" ; {self.pick(MARKERS[:3])}")
        place = f"{self.pick(['./', '', '${HERE}/', 'file://${HERE}/'])}good-1.0-py3-none-any.whl"
        forms = [
            f"{self.pick([*NAMES[:2] * 20, *LURES])}{self.some(0.3, '[x]')}{self.some(0.5, '>=1.0,!=3')}{marker}",
            f"{place}{self.some(0.2, '[x]')}{marker}",
            f"good @ https://127.0.0.1:9/good-1.0-py3-none-any.whl{self.pick(FRAGMENTS[:4])}",
            f"{self.pick(['-f', '--find-links ', '--find-links='])}{self.pick(['links', './links', '${HERE}/links'])}",
            f"{self.pick(['-r ', '-r', '-c ', '--constraint='])}{self.pick(['less.txt', 'more.txt'])}",
            f"{self.pick(['-i ', '--extra-index-url '])}{self.pick(['http://127.0.0.1:9/${ONE}', 'links'])}",
            self.pick(OPTIONS[:5]),
        ]
        return self.pick(forms)

    def line(self) -> str:
        form = self.rng.random()
        blank = self.pick(BLANKS)
        if form < 0.3:
            operator = self.pick(["==", ">=", "<", "~=", "!=", "===", "=", ">"])
            return f"{self.name()}{self.some(0.6, f'{blank}{operator}{self.pick(VERSIONS)}')}{self.tail()}"
        if form < 0.5:
            return f"{self.pick(PLACES)}{self.pick(FRAGMENTS)}{self.some(0.1, '[x]')}{self.tail()}"
        if form < 0.65:
            return f"{self.name()}{blank}@{self.pick(BLANKS)}{self.pick(PLACES)}{self.pick(FRAGMENTS)}{self.tail()}"
        if form < 0.8:
            return " ".join(self.pick(OPTIONS) for _ in range(self.rng.randint(1, 2)))
        if form < 0.93:
            option = self.pick(VALUED)
            value = self.pick(FILES if option in VALUED[:4] else PLACES)
            return (
                f"{option}{self.pick([' ', '=', '', '  '])}{self.pick([value, repr(value)])}{self.some(0.1, ' --pre')}"
            )
        if form < 0.97:
            return f"#{blank}{self.pick(PLACES)}"
        return "".join(chr(self.rng.choice([self.rng.randrange(128), self.rng.randrange(0x3000)])) for _ in range(9))

    def text(self) -> bytes:
        lines = self.rng.choice([1, 1, 2, 3, 5])
        odd = self.pick([0.0, 0.2, 1.0])  # how much of it
        text = self.some(odd / 4, self.pick(CODINGS)) + "".join(
            (self.line() if self.rng.random() < odd else self.honest()) + self.pick(ENDS if odd else ENDS[:12])
            for _ in range(lines)
        )
        if self.rng.random() < odd / 4:
            at = self.rng.randrange(len(text) + 1)
            text = text[:at] + self.pick([*ENDS, *BLANKS, '"', "'", "\\", "$", "{", "-", "@", ";", "#"]) + text[at:]
        return text.encode(
            self.pick(["utf-16", "utf-8-sig", "utf-7"]) if self.rng.random() < odd / 8 else "utf-8", "surrogatepass"
        )


def facts() -> dict[str, dict[str, Any]]:
    return {"h": python_facts("3.11.2", tags=["cp311-cp311-linux_x86_64", "py3-none-any"])}


@lru_cache
def _session() -> Any:
    from pip._internal.network.session import PipSession

    return PipSession()


def read_by_pip(folder: Path, asked: Requirements) -> list[Requirement]:
    """What pip makes of the file, by its own parser, in a folder where nothing else is."""
    from pip._internal.index.collector import LinkCollector
    from pip._internal.index.package_finder import PackageFinder
    from pip._internal.models.format_control import FormatControl
    from pip._internal.models.search_scope import SearchScope
    from pip._internal.models.selection_prefs import SelectionPreferences
    from pip._internal.req.constructors import install_req_from_parsed_requirement
    from pip._internal.req.req_file import parse_requirements

    (folder / "requirements").write_text(asked.text(), "ascii")
    (folder / "constraints").write_text(asked.constraints(), "ascii")
    session = _session()
    scope = SearchScope([], [], False)
    allowed = FormatControl(set(), {":all:"})
    finder = PackageFinder.create(
        LinkCollector(session, scope), SelectionPreferences(allow_yanked=False, format_control=allowed)
    )
    found = []
    for name, constraint in (("requirements", False), ("constraints", True)):
        for line in parse_requirements(name, session, finder, constraint=constraint):
            assert not line.is_editable, line.requirement
            assert not {*(line.options or {})} - {"hashes"}, line.options
            one = install_req_from_parsed_requirement(line)
            assert one.req is not None and not one.editable
            if one.link is not None:
                assert one.link.is_wheel and not one.link.is_vcs and not one.link.is_existing_dir(), one.link
                assert one.link.subdirectory_fragment is None, one.link
                assert not one.link.is_file or zipfile.is_zipfile(one.link.file_path), one.link
            found.append(Requirement(str(one.req) + (f" ; {one.markers}" if one.markers else "")))
    assert not allowed.no_binary and ":all:" in allowed.only_binary, (allowed.no_binary, allowed.only_binary)
    lines = asked.text().splitlines()
    options = [line.split(" ", 1) for line in lines if line.startswith("--") and " " in line]
    indexes = [value for option, value in options if "index-url" in option and "--no-index" not in lines]
    assert finder.index_urls == indexes, (finder.index_urls, indexes)
    assert finder.find_links == [value for option, value in options if option == "--find-links"]
    return found


def meant(asked: Requirements) -> list[Requirement]:
    """What fleet says that it handed on, a requirement a line."""
    lines = [line for line in (asked.text() + asked.constraints()).splitlines() if not line.startswith("--")]
    return [Requirement(line.partition(" --hash=")[0]) for line in lines]


def same(one: Requirement, other: Requirement) -> bool:
    return (
        canonicalize_name(one.name) == canonicalize_name(other.name)
        and {canonicalize_name(e) for e in one.extras} == {canonicalize_name(e) for e in other.extras}
        and one.specifier == other.specifier
        and one.url == other.url
        and str(one.marker) == str(other.marker)
    )


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A project full of traps, which is the current folder, and no index but what requirements name."""
    with tempfile.TemporaryDirectory(prefix="fleet-requirements.") as name:
        folder = Path(name).resolve()
        ground(folder)
        os.mkfifo(folder / "fifo")
        os.mkfifo(folder / "fifo-1.0-py3-none-any.whl")
        (folder / "less.txt").write_text("good<2\n")
        (folder / "empty").mkdir()
        own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        own |= {"HERE": name, "PWD": name, "ONE": "1", "HOME": name, "XDG_CACHE_HOME": f"{name}/cache"}
        own |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "PIP_TIMEOUT": "2"}
        before = os.getcwd()
        with mock.patch.dict(os.environ, own, clear=True):
            os.chdir(folder)
            try:
                yield folder
            finally:
                os.chdir(before)


def run(seconds: float, seed: int, most: int = 1 << 60) -> None:
    """Tries as many files as that time allows, `most` at most. AssertionError with the seed and the files, where fleet
    let something through."""
    end, rng = time.monotonic() + seconds, random.Random(seed)
    draw = Draw(rng)
    counts = {"refused": 0, "taken": 0, "by pip": 0}
    with place() as folder:
        while time.monotonic() < end and sum(counts.values()) < most:
            files = {name: draw.text() for name in ("r.txt", "more.txt")}
            for name, data in files.items():
                (folder / name).write_bytes(data)
            try:
                counts[_one(folder, rng)] += 1
                assert not (folder / "MARK").exists(), "setup code ran"
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error!r} for {files}") from error
    print(f"requirements: seed {seed}: {counts}")


def _one(folder: Path, rng: random.Random) -> str:
    try:
        asked = Requirements(folder / "r.txt")
    except UsageError as error:
        assert error.hint and error.message.isprintable(), error
        return "refused"
    text = asked.text() + asked.constraints()
    assert text.isascii() and "$" not in text and "\\" not in text, text
    os.chdir(folder / "empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of pip's own modules
            found, wanted = read_by_pip(folder / "empty", asked), meant(asked)
    finally:
        os.chdir(folder)
    assert len(found) == len(wanted) and all(map(same, found, wanted)), (found, wanted)
    trapped = any(one.name in LURES for one in found)
    if not found or rng.random() > (0.3 if trapped else 0.02):
        return "taken"
    with (
        mock.patch.dict(os.environ, {"PIP_FIND_LINKS": "links", "PIP_NO_BINARY": "evil"}),
        contextlib.suppress(FleetError),
    ):
        collect(folder / "r.txt", facts(), Runtime(LocalTransport()), refresh=True)
    return "by pip"
