"""What of a folder is sent: what git lists, then as .fleetignore has it, less what is never sent unasked (unasked.py).

Git decides for what lies in one of its work trees: a file that it tracks goes whatever a pattern says, and submodules
and clones inside decide for themselves. Where no git is to be had, and of what lies in no work tree, patterns.py reads
the ignore files. A line of .fleetignore comes after all of git's, and counts for tracked files, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fleet.delivery.git import NoAnswer, ask
from fleet.delivery.patterns import Pattern, Scope, read_bytes
from fleet.delivery.unasked import (
    MADE_HERE,
    SECRETS,
    credentials,
    is_environment,
    is_named_as_key,
    is_private_key,
    is_used,
    used,
)
from fleet.model import Host
from fleet.protocol.state import OF_THE_HEAD, STATE_FOLDERS

SECONDS, MORE_SECONDS = 5.0, 60.0
GIT_BYTES = 256 << 20
Why = Pattern | str  # for which something is left out
NOT_LISTED = "git does not list it"


class Repository:
    """A git work tree, or a folder that lies in none. top: where it begins. at: its path below the source, "" or
    "a/b/". inside: the source's path in it, the same way. tracked, listed: paths below the source that git knows, and
    all that it lists. own: git does not decide."""

    def __init__(self, top: str, at: str, inside: str, folder: str | None, alone: bool = False) -> None:
        """folder: which git is to list. alone: what git ignores is not asked, as all of the source is ignored."""
        self.top, self.at, self.inside, self.own = top, at, inside, True
        self.tracked: set[str] = set()
        self.listed: set[str] = set()
        self.trouble = ""
        self._alone, self._asked = alone, folder
        if folder is None:
            return
        words = ("ls-files", "-t", "-z", "--cached", "--others", "--exclude-standard")
        try:
            try:
                out = ask(folder, *words, seconds=SECONDS, most=GIT_BYTES)
            except NoAnswer as why:
                if not why.late:
                    raise
                for around, _, files in os.walk(folder):  # it waits for pipes of that name
                    if ".gitignore" in files:
                        read_bytes(f"{around}/.gitignore")
                out = ask(folder, *words, seconds=MORE_SECONDS, most=GIT_BYTES)
        except NoAnswer as why:
            self.trouble = str(why)
            return
        self.own, names = alone, os.fsdecode(out).split("\0")
        self.tracked = {at + name[2:] for name in names if name and name[0] != "?"}
        self.listed = self.tracked | {at + name[2:].removesuffix("/") for name in names if name[:1] == "?"}

    @cached_property
    def folders(self) -> set[str]:
        """In which something lies that is listed."""
        return above(self.listed)

    @cached_property
    def tracked_folders(self) -> set[str]:
        return above(self.tracked)

    @cached_property
    def scope(self) -> Scope:
        """Its ignore files."""
        if self._alone:
            return Scope(self.top, ".gitignore")
        common = [Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "git/ignore")]
        if self._asked is not None and not self.trouble:
            words = ("config", "-z", "--type=path", "--get", "core.excludesFile")
            try:
                said = ask(self._asked, *words, seconds=SECONDS, most=1 << 16)
                common = [Path(self.top, os.fsdecode(said.partition(b"\0")[0]))]
            except NoAnswer:  # as it says that there is none
                pass
        if (folder := git_folder(self.top)) is not None:
            common.append(folder / "info/exclude")
        return Scope(self.top, ".gitignore", common)

    def path(self, path: str) -> str:
        """A path below the source as one below top."""
        return self.inside + path[len(self.at) :]

    def ignores(self, path: str) -> Pattern | None:
        """The pattern by which a folder is ignored, itself or one that it is in."""
        names = self.path(path).rstrip("/").split("/")
        for count in range(1, len(names) + 1):
            found = self.scope.last("/".join(names[:count]), True)
            if found and not found.negated:
                return found
        return None


class Sieve:
    """What is known of a whole source. everything: also what each machine makes for itself. left: what is left out
    unasked -> where. sent: tracked private keys."""

    def __init__(
        self,
        root: str,
        hosts: Sequence[Host] = (),
        places: Sequence[str] = (),
        everything: bool = False,
        brought: Iterable[str] = (),
        alone: bool = False,
    ) -> None:
        """hosts: of the inventory. places: where the source goes on them. brought: what `get` put there. alone: see
        Repository."""
        self.root, self.everything, self.uses, self.places = root, everything, used(hosts), (root, *places)
        self.brought = frozenset(brought)
        self.credentials = credentials(hosts)
        self.left: dict[str, list[str]] = {}
        self.sent: list[str] = []
        self.notices: list[str] = []
        top = next((str(p) for p in (Path(root), *Path(root).parents) if git_folder(str(p)) is not None), None)
        self.outer = "" if top in (None, root) else f"{os.path.relpath(root, top)}/"
        self.fleet = Scope(top or root, ".fleetignore")
        above = Path(root).parents[: self.outer.count("/")]
        self.has_fleet = any(os.path.lexists(folder / ".fleetignore") for folder in above)
        first = Repository(
            root if alone else top or root, "", "" if alone else self.outer, root if top else None, alone
        )
        self.repositories = {"": first}
        self._heed(first)
        self.is_ignored = bool(not alone and self.outer and first.ignores(""))

    def _heed(self, repository: Repository) -> None:
        if repository.trouble:
            where = repository.at or self.root
            self.notices.append(
                f"git does not list {where} ({repository.trouble}): fleet reads its ignore files itself, and takes no "
                "file for one that git tracks"
            )

    @property
    def rules(self) -> Rules:
        """Of the source itself."""
        first = self.repositories[""]
        return Rules(self, first, first.own)

    def nested(self, prefix: str, around: Repository) -> Repository:
        """The work tree that begins at that folder of the source. around: the one that it lies in, which may list files
        in it all the same."""
        if prefix not in self.repositories:
            folder = os.path.join(self.root, prefix)
            troubled = self.repositories[""].trouble  # is so there, too, and was said
            self.repositories[prefix] = one = Repository(folder, prefix, "", None if troubled else folder)
            self._heed(one)
            if prefix[:-1] in around.folders:
                one.tracked |= {path for path in around.tracked if path.startswith(prefix)}
                one.listed |= {path for path in around.listed if path.startswith(prefix)}
        return self.repositories[prefix]

    def reaches(self, path: str) -> bool:
        """Whether a line of .fleetignore may bring back something in that folder, which git ignores."""
        if not self.has_fleet:
            return False
        below = os.fsencode(self.outer + path) + b"/"
        for base, pattern in self.fleet.negated(self.outer + path):
            literal = base + pattern.literal
            if pattern.name or below.startswith(literal) or literal.startswith(below):
                return True
        return False

    def unasked(self, path: str, folder: bool, info: os.stat_result | None, back: Pattern | None) -> str | None:
        """What it is called that is left out for its kind. back: the line of .fleetignore that brings it back."""
        name, full = path.rpartition("/")[2], os.path.join(self.root, path)
        if name in SECRETS:
            return None if self.everything else name
        if full in self.credentials:
            return "password or identity file"
        if not folder:
            if path in self.brought:
                return "file that get brought"
            is_file = info is not None and stat.S_ISREG(info.st_mode)
            return "private key" if is_file and info and is_private_key(full, info.st_size) else None
        if self.everything or back is not None and back.text.rstrip("/").rpartition("/")[2].lstrip("!") == name:
            return None
        if name in MADE_HERE or is_environment(full) and not is_used(path, self.uses, self.places):
            return name
        return None

    def why(self, path: str, folder: bool = False) -> Why | None:
        """Why it is not sent, whether or not it is there; None where no rule says so."""
        self.has_fleet = True  # anywhere; they are read as paths are asked for
        rules = Rules(self, self.repositories[""], True)
        names = path.split("/")
        for count in range(1, len(names) + 1):
            at = "/".join(names[:count])
            found = rules.judge(at, folder or count < len(names), None, count=False)
            if not isinstance(found, Rules):
                return found
            if (nested := self.repositories.get(f"{at}/")) is not None and found.shut is None:
                found = Rules(self, nested, True)
            rules = found
        return None


def why_not_sent(root: Path, path: str) -> Why | None:
    """Why a file below the folder `root` is not sent with it; None where it is, or is not there."""
    sieve = Sieve(os.path.realpath(root)) if os.path.isfile(root / path) else None
    if sieve is not None and sieve.is_ignored:
        sieve = Sieve(sieve.root, alone=True)
    return sieve.why(path) if sieve is not None else None


class Rules(NamedTuple):
    """What is sent of a folder's children. own: by patterns.py, not by what git lists. shut: why nothing is sent but
    what is tracked, or brought back by .fleetignore."""

    sieve: Sieve
    repository: Repository
    own: bool
    shut: Why | None = None

    def enter(self, prefix: str, names: Iterable[str]) -> Rules:
        """The rules in the folder that is called `prefix` ("" or "a/b/") below the source and holds these names."""
        sieve, repository = self.sieve, self.repository
        names = set(names)
        inside = prefix[:-1]
        if ".fleetignore" in names:
            sieve.has_fleet = True
        else:
            sieve.fleet.without((sieve.outer + inside).rstrip("/"))
        if (
            ".git" in names
            and prefix != repository.at
            and self.shut is None
            and git_folder(os.path.join(sieve.root, inside)) is not None
        ):
            repository = sieve.nested(prefix, repository)
            return Rules(sieve, repository, repository.own)
        return self

    def take(self, path: str, child: os.DirEntry[str], folder: bool) -> Rules | None:
        """The rules inside one of its children (of a file: any); None where it is left out."""
        if not folder and path in self.repository.tracked and not self.sieve.has_fleet and not is_named_as_key(path):
            return self  # most are
        found = self.judge(path, folder, child)
        return found if isinstance(found, Rules) else None

    def judge(self, path: str, folder: bool, child: os.DirEntry[str] | None, count: bool = True) -> Rules | Why:
        """As take(), with the reason. count: it counts among what is left out."""
        sieve, repository = self.sieve, self.repository
        name = path.rpartition("/")[2]
        if name == ".git" or folder and (name.endswith(STATE_FOLDERS) or is_fleets(os.path.join(sieve.root, path))):
            return f"fleet never sends {name}"
        fleets = sieve.fleet.last(sieve.outer + path, folder) if sieve.has_fleet else None
        if fleets is not None and not fleets.negated:
            return fleets
        known = path in repository.tracked
        above = folder and path in repository.tracked_folders
        why = None if known else self._ignored(path, folder, child)
        inner = self._replace(shut=None) if known and folder and self.shut else self
        if why is not None:
            if fleets is not None:
                inner = self._replace(own=True, shut=None)
            elif above or folder and sieve.reaches(path):
                inner = self._replace(own=True, shut=why)
            else:
                return why
        if not known and not above:
            info = None if child is None else child.stat(follow_symlinks=False)
            if kind := sieve.unasked(path, folder, info, fleets):
                if count and inner.shut is None and path not in sieve.brought:
                    sieve.left.setdefault(kind, []).append(path)
                return f"fleet does not send a {kind} unasked"
        elif child is not None and is_named_as_key(path) and child.is_file(follow_symlinks=False):
            sieve.sent += [path] if is_private_key(child.path, child.stat().st_size) else []
        return inner

    def _ignored(self, path: str, folder: bool, child: os.DirEntry[str] | None) -> Why | None:
        """Why git does not list it."""
        repository = self.repository
        if self.shut is not None:
            return self.shut
        if not self.own:
            if path in repository.listed or folder and path in repository.folders and not self.sieve.has_fleet:
                return None
            if folder:  # what is tracked may lie in one that is ignored
                return repository.ignores(path)
            if child is None or child.is_symlink() or child.is_file(follow_symlinks=False):
                return NOT_LISTED
        found = repository.scope.last(repository.path(path), folder)
        return found if found is not None and not found.negated else None


def git_folder(top: str) -> Path | None:
    """Where what all work trees of the repository share lies, that has one at `top`; None where that is none."""
    found = Path(top, ".git")
    try:
        if found.is_file():
            line = found.read_bytes()[:4096]
            if not line.startswith(b"gitdir: "):
                return None
            found = Path(top, os.fsdecode(line[8:].rstrip(b"\r\n")))
        if not os.path.lexists(found / "HEAD"):
            return None
        common = found / "commondir"
        return Path(found, os.fsdecode(common.read_bytes().rstrip(b"\r\n"))) if common.is_file() else found
    except (OSError, ValueError):
        return None


def is_fleets(folder: str) -> bool:
    """Whether it holds what fleet itself keeps on this machine."""
    path = f"{folder}/.gitignore"
    return os.path.isfile(path) and read_bytes(path) == OF_THE_HEAD.encode()


def above(paths: Iterable[str]) -> set[str]:
    """The folders that these lie in."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found
