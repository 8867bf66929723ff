"""Selects the files of a folder that are sent: git's list, changed by .fleetignore, less what unasked.py holds back.

In a git work tree, a file that git tracks is sent, no matter which .gitignore pattern matches it. Submodules and clones
in the folder have their own lists. Outside of work trees, and if git gives no list, patterns.py reads the ignore files.
The lines of .fleetignore come after all of git's, and apply to tracked files, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fleet import own
from fleet.delivery.git import NoAnswer, TooLate, ask
from fleet.delivery.patterns import Pattern, Scope, read_bytes
from fleet.delivery.unasked import (
    KEY_NAMES,
    MADE_HERE,
    credentials,
    is_environment,
    is_used,
)
from fleet.model import Host
from fleet.node.delivery.private import SECRETS, is_private_key
from fleet.protocol.state import OF_THE_HEAD
from fleet.rules.units import few

SECONDS, MORE_SECONDS = 5.0, 60.0
GIT_BYTES = 256 << 20
Why = Pattern | str  # the reason why a path is left out
UNLISTED = "git does not list it"


class Repository:
    """Holds git's list of a work tree, or stands for a folder outside of one. top: its uppermost folder. tracked: paths
    in the source that git tracks. others: untracked paths that git lists, and their folders as "a/". own: there is no
    list, fleet applies the ignore files itself. trouble: why git gives no list, or ""."""

    def __init__(self, top: str, at: str, folder: str | None) -> None:
        """folder: the one that git is to list; None: do not run git. at: its path in the source, "" or "a/b/"."""
        self.top, self.trouble = top, ""
        names: list[str] = []
        try:
            names = os.fsdecode(_listed(folder, top)).split("\0") if folder is not None else []
            if folder is None and git_folder(top) is None and (at or os.path.lexists(f"{top}/.git")):
                raise NoAnswer("its git folder is gone")
        except NoAnswer as why:
            self.trouble = str(why)
        self.own = folder is None or self.trouble != ""
        self.tracked = {at + name[2:] for name in names if name[:1] not in ("", "?")}
        self.others = {at + name[2:] for name in names if name[:1] == "?"}
        self.others |= {f"{folder}/" for folder in above(self.others)}

    @cached_property
    def tracked_folders(self) -> set[str]:
        return above(self.tracked)

    @cached_property
    def scope(self) -> Scope:
        """Returns its ignore files: each .gitignore, the user's, and info/exclude of the git folder."""
        common = [Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "git/ignore")]
        if not self.own:
            arguments = ("config", "-z", "--type=path", "--get", "core.excludesFile")
            with suppress(NoAnswer):  # git fails if it is not set
                answer = ask(self.top, *arguments, seconds=SECONDS, most=1 << 16)
                common = [Path(self.top, os.fsdecode(answer.partition(b"\0")[0]))]
        if (folder := git_folder(self.top)) is not None:
            common.append(folder / "info/exclude")
        return Scope(os.path.join(self.top, ""), ".gitignore", common)

    def ignores(self, path: str, folder: bool) -> Pattern | None:
        """Returns the pattern by which git ignores this very path, or None. Those for folders above it do not count."""
        found = self.scope.last(path, folder)
        return None if found is None or found.negated else found


class Sieve:
    """Holds the rules of a source, and what they excluded so far. everything (--all): send environments, caches and
    folders such as .ssh, too. left: kind of file that was held back -> its paths. sent: private keys that are sent
    because git tracks them. ignored: paths that patterns exclude; of a folder only its own. outer: the source and the
    folders above it, up to the top of the work tree that they lie in, without that."""

    def __init__(
        self,
        root: str,
        hosts: Sequence[Host] = (),
        places: Sequence[str] = (),
        everything: bool = False,
        brought: Iterable[str] = (),
        alone: bool = False,
    ) -> None:
        """hosts: of the inventory. places: the destinations on them. brought: paths in the source that `get` fetched.
        alone: the work tree around the source ignores it as a whole, and does not count."""
        self.root, self.prefix = root, os.path.join(root, "")
        self.everything, self.brought = everything, frozenset(brought)
        self.hosts, self.places, self.credentials = hosts, (root, *places), credentials(hosts)
        self.left: dict[str, list[str]] = {}
        self.sent: list[str] = []
        self.ignored: list[str] = []
        around = [root, *map(str, Path(root).parents)]
        top = next((folder for folder in around if git_folder(folder) is not None), None)
        self.outer = around[: around.index(top)] if top else []
        self.fleet = Scope(os.path.join(top or root, ""), ".fleetignore")
        first = Repository(top or root, "", root if top else None)
        if alone or any(first.ignores(folder, True) for folder in reversed(self.outer)):
            first.own, first.scope = True, Scope(self.prefix, ".gitignore")
        self.repositories = {"": first}
        self.rules = Rules(self, first)

    def notices(self) -> list[str]:
        """Returns what the sending user should know, one line each."""
        found = [
            f"git does not list {at or self.root} ({one.trouble}): fleet reads its ignore files itself, and "
            "takes no file for one that git tracks"
            for at, one in self.repositories.items()
            if one.trouble
        ]
        if not MADE_HERE.issuperset(self.left):  # caches alone are worth no line
            named = ", ".join(_counted(kind, sorted(paths)) for kind, paths in sorted(self.left.items()))
            found.append(f"not sent unasked: {named}; --all sends it, but for keys and password files")
        if self.sent:
            found.append(f"private keys that git tracks are sent: {few(sorted(self.sent))}")
        return found

    @property
    def left_out(self) -> str | None:
        """Returns the text about what patterns exclude, None if they exclude nothing."""
        count = len(self.ignored)
        return f"left out by ignore files: {few(sorted(self.ignored))} ({count} in all)" if count else None

    def unasked(self, path: str, folder: bool, is_key: bool, back: Pattern | None) -> str | None:
        """Returns the kind of file ("private key", ".venv") for which a path is held back, None if it is not. back: the
        line of .fleetignore that includes it again."""
        name, full = path.rpartition("/")[2], self.prefix + path
        if name in SECRETS:
            return None if self.everything else name
        if full in self.credentials:
            return "password or identity file"
        if is_key:
            return "private key"
        if not folder or self.everything:
            return None
        if back is not None and back.text.rstrip("/").rpartition("/")[2].lstrip("!") == name:
            return None
        is_made_here = name in MADE_HERE or is_environment(full) and not is_used(path, self.hosts, self.places)
        return name if is_made_here else None

    def why(self, path: str, folder: bool = False) -> Why | None:
        """Returns why a path is not sent, None if no rule excludes it. The path need not exist."""
        rules, names = self.rules, path.split("/")
        for count in range(1, len(names) + 1):
            at = "/".join(names[:count])
            found = rules.judge(at, folder or count < len(names))
            if not isinstance(found, Rules):
                return found
            nested = self.repositories.get(f"{at}/")
            rules = found if nested is None or found.shut is not None else Rules(self, nested)
        return None


class Rules(NamedTuple):
    """Decides which children of a folder are sent. back: .fleetignore includes it again, so git's list does not count.
    shut: why it is excluded, None if it is not; only files that git tracks or .fleetignore includes are sent then."""

    sieve: Sieve
    repository: Repository
    back: bool = False
    shut: Why | None = None

    def enter(self, prefix: str, names: Sequence[str]) -> Rules:
        """Returns the rules in the folder `prefix` of the source ("" or "a/b/"), which holds these names."""
        sieve, repository = self.sieve, self.repository
        folder = sieve.prefix + prefix
        is_submodule = prefix[:-1] in self.repository.tracked and prefix not in self.repository.others
        if (".git" in names or is_submodule) and prefix not in sieve.repositories and self.shut is None:
            is_there = git_folder(folder) is not None
            if is_there or is_submodule and names:
                # if git gave no list of the source's repository, it is not run for this one
                listed = is_there and not sieve.repositories[""].trouble
                repository = sieve.repositories[prefix] = Repository(folder[:-1], prefix, folder if listed else None)
            if prefix[:-1] in self.repository.tracked_folders:  # the repository around it tracks files in it, too
                repository.tracked |= {path for path in self.repository.tracked if path.startswith(prefix)}
                repository.others |= {path for path in self.repository.others if path.startswith(prefix)}
        sieve.fleet.of(folder, ".fleetignore" in names)
        repository.scope.of(folder, ".gitignore" in names)
        return self if repository is self.repository else Rules(sieve, repository)

    def take(self, path: str, child: os.DirEntry[str], folder: bool) -> Rules | None:
        """Returns the rules in a child of the folder, None if the child is left out. Those of a file mean nothing."""
        if not folder and path in self.repository.tracked and self.sieve.fleet.empty and not path.endswith(KEY_NAMES):
            return self  # true of most files, and needs no look at them
        found = self.judge(path, folder, child)
        if isinstance(found, Rules):
            return found
        if isinstance(found, Pattern) or found == UNLISTED:
            self.sieve.ignored.append(path + "/" * folder)
        return None

    def judge(self, path: str, folder: bool, child: os.DirEntry[str] | None = None) -> Rules | Why:
        """Returns the rules in a child of the folder, or why it is left out. Without `child`, it counts nothing."""
        sieve, repository = self.sieve, self.repository
        name, full = path.rpartition("/")[2], sieve.prefix + path
        if name == ".git" or folder and is_fleets(full):
            return f"fleet never sends {name}"
        fleets = sieve.fleet.last(full, folder)
        if fleets is not None and not fleets.negated:
            return fleets
        known = path in repository.tracked
        above = folder and path in repository.tracked_folders
        why = None if known else self._ignored(path, folder, child)
        if why is None:
            inner = self._replace(shut=None) if self.shut else self
        elif fleets is not None:
            inner = self._replace(back=True, shut=None)
        elif above or folder and sieve.fleet.reaches(full):
            inner = self._replace(shut=why)
        else:
            return why
        is_key = (
            child is not None
            and (not known or path.endswith(KEY_NAMES))
            and child.is_file(follow_symlinks=False)
            and is_private_key(child.path, child.stat().st_size)
        )
        if known:
            sieve.sent += [path] if is_key else []
        elif not folder and path in sieve.brought:
            return "fleet does not send a file that get brought unasked"
        elif not above and (kind := sieve.unasked(path, folder, is_key, fleets)):
            if child is not None and inner.shut is None:
                sieve.left.setdefault(kind, []).append(path)
            return f"fleet does not send a {kind} unasked"
        return inner

    def _ignored(self, path: str, folder: bool, child: os.DirEntry[str] | None) -> Why | None:
        """Returns why git does not list an untracked path, None if it does."""
        repository = self.repository
        if self.shut is not None or path + "/" * folder in repository.others:
            return self.shut
        by_list = not (folder or child is None or self.back or repository.own)
        if by_list and child and (child.is_symlink() or child.is_file(follow_symlinks=False)):
            return UNLISTED
        return repository.ignores(self.sieve.prefix + path, folder)


def _counted(kind: str, paths: Sequence[str]) -> str:
    """Returns the text of a notice: "2 private keys (a.pem, b.pem)", ".venv", "__pycache__ (12)"."""
    if " " in kind:
        return f"{len(paths)} {kind}s ({few(paths)})" if len(paths) > 1 else f"{kind} {paths[0]}"
    return f"{kind} ({len(paths)})" if len(paths) > 1 else paths[0]


def _listed(folder: str, top: str) -> bytes:
    """Returns git's list of a folder's files. Raises NoAnswer, also if its work tree does not begin at `top`."""
    work_tree = ask(folder, "rev-parse", "--show-toplevel", seconds=SECONDS, most=1 << 16).removesuffix(b"\n")
    if os.path.realpath(work_tree) != os.fsencode(os.path.realpath(top)):  # so in a copy of a submodule
        raise NoAnswer(f"its git folder is that of {os.fsdecode(work_tree)}")
    arguments = ("ls-files", "-t", "-z", "--cached", "--others", "--exclude-standard")
    try:
        return ask(folder, *arguments, seconds=SECONDS, most=GIT_BYTES)
    except TooLate:
        for around, _, files in os.walk(folder):  # git may hang on a FIFO of that name, which read_bytes() reports
            if ".gitignore" in files:
                read_bytes(f"{around}/.gitignore")
        return ask(folder, *arguments, seconds=MORE_SECONDS, most=GIT_BYTES)


def git_folder(top: str) -> Path | None:
    """Returns the git folder that the work tree at `top` shares with others of its repository, None if it is none."""
    found = Path(top, ".git")
    try:
        if found.is_file():
            line = own.read_given(found)[:4096]
            if not line.startswith(b"gitdir: "):
                return None
            found = Path(top, os.fsdecode(line[8:].rstrip(b"\r\n")))
        if not os.path.lexists(found / "HEAD"):
            return None
        common = found / "commondir"
        return Path(found, os.fsdecode(own.read_given(common).rstrip(b"\r\n"))) if common.is_file() else found
    except (OSError, ValueError):
        return None


def is_fleets(folder: str) -> bool:
    """Is true if the folder is one that fleet keeps for itself on the head: runs/ or builds/."""
    path = f"{folder}/.gitignore"
    return os.path.isfile(path) and read_bytes(path) == OF_THE_HEAD.encode()


def above(paths: Iterable[str]) -> set[str]:
    """Returns all folders above these paths, without the uppermost one, ""."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found
