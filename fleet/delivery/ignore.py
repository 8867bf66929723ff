"""Selects what of a folder is sent: what git lists, changed by .fleetignore, less what unasked.py excludes.

Git decides for what lies in one of its work trees: a file that it tracks is sent whatever a pattern matches. Submodules
and clones inside decide for themselves. Without git, and outside of any work tree, patterns.py reads the ignore files.
A line of .fleetignore comes after all of git's, and counts for tracked files, too."""

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
Why = Pattern | str  # for which something is left out
UNLISTED = "git does not list it"


class Repository:
    """A git work tree, or a folder that lies in none. top: where it begins. tracked: paths below the source that git
    knows. others: those that it lists besides, and the folders that they lie in, as "a/". own: git does not decide.
    trouble: why it gives no list."""

    def __init__(self, top: str, at: str, folder: str | None) -> None:
        """folder: which git is to list. at: its path below the source, "" or "a/b/"."""
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
        """Its ignore files."""
        common = [Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "git/ignore")]
        if not self.own:
            arguments = ("config", "-z", "--type=path", "--get", "core.excludesFile")
            with suppress(NoAnswer):  # as it reports that there is none
                answer = ask(self.top, *arguments, seconds=SECONDS, most=1 << 16)
                common = [Path(self.top, os.fsdecode(answer.partition(b"\0")[0]))]
        if (folder := git_folder(self.top)) is not None:
            common.append(folder / "info/exclude")
        return Scope(os.path.join(self.top, ""), ".gitignore", common)

    def ignores(self, path: str, folder: bool) -> Pattern | None:
        """The pattern for which git ignores it, were it not in a folder that is ignored."""
        found = self.scope.last(path, folder)
        return None if found is None or found.negated else found


class Sieve:
    """Holds what is known of a whole source. everything: also what each machine makes for itself. left: what is held
    back -> where. sent: tracked private keys. ignored: what patterns exclude, folders as a whole. outer: the source and
    the folders around it in an outer repository."""

    def __init__(
        self,
        root: str,
        hosts: Sequence[Host] = (),
        places: Sequence[str] = (),
        everything: bool = False,
        brought: Iterable[str] = (),
        alone: bool = False,
    ) -> None:
        """hosts: of the inventory. places: where the source goes on them. brought: what `get` put there. alone: the
        outer repository ignores all of it, and does not count."""
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
        """Returns what patterns leave out, as text; None for nothing."""
        count = len(self.ignored)
        return f"left out by ignore files: {few(sorted(self.ignored))} ({count} in all)" if count else None

    def unasked(self, path: str, folder: bool, is_key: bool, back: Pattern | None) -> str | None:
        """Returns the name of the kind for which a path is held back, or None. back: the line of .fleetignore that
        includes it again."""
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
        """Why it is not sent, whether or not it is there; None where no rule excludes it."""
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
    """Decides which children of a folder are sent. back: .fleetignore included it again, so git's list does not count.
    shut: why only what is tracked, or included by .fleetignore, is sent."""

    sieve: Sieve
    repository: Repository
    back: bool = False
    shut: Why | None = None

    def enter(self, prefix: str, names: Sequence[str]) -> Rules:
        """The rules in the folder that is called `prefix` ("" or "a/b/") below the source and holds these names."""
        sieve, repository = self.sieve, self.repository
        folder = sieve.prefix + prefix
        is_submodule = prefix[:-1] in self.repository.tracked and prefix not in self.repository.others
        if (".git" in names or is_submodule) and prefix not in sieve.repositories and self.shut is None:
            is_there = git_folder(folder) is not None
            if is_there or is_submodule and names:
                # where git does not list the source's own, it does not list this one either
                listed = is_there and not sieve.repositories[""].trouble
                repository = sieve.repositories[prefix] = Repository(folder[:-1], prefix, folder if listed else None)
            if prefix[:-1] in self.repository.tracked_folders:  # which lists what is in this one all the same
                repository.tracked |= {path for path in self.repository.tracked if path.startswith(prefix)}
                repository.others |= {path for path in self.repository.others if path.startswith(prefix)}
        sieve.fleet.of(folder, ".fleetignore" in names)
        repository.scope.of(folder, ".gitignore" in names)
        return self if repository is self.repository else Rules(sieve, repository)

    def take(self, path: str, child: os.DirEntry[str], folder: bool) -> Rules | None:
        """The rules inside one of its children (of a file: any); None where it is left out."""
        if not folder and path in self.repository.tracked and self.sieve.fleet.empty and not path.endswith(KEY_NAMES):
            return self  # most are
        found = self.judge(path, folder, child)
        if isinstance(found, Rules):
            return found
        if isinstance(found, Pattern) or found == UNLISTED:
            self.sieve.ignored.append(path + "/" * folder)
        return None

    def judge(self, path: str, folder: bool, child: os.DirEntry[str] | None = None) -> Rules | Why:
        """Returns what take() does, with the reason. child: None where it may not exist, and is not counted."""
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
        """Why git does not list it."""
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
    """Returns git's list of a folder whose work tree is to begin at `top`. Raises NoAnswer."""
    work_tree = ask(folder, "rev-parse", "--show-toplevel", seconds=SECONDS, most=1 << 16).removesuffix(b"\n")
    if os.path.realpath(work_tree) != os.fsencode(os.path.realpath(top)):  # a submodule that was copied next to itself
        raise NoAnswer(f"its git folder is that of {os.fsdecode(work_tree)}")
    arguments = ("ls-files", "-t", "-z", "--cached", "--others", "--exclude-standard")
    try:
        return ask(folder, *arguments, seconds=SECONDS, most=GIT_BYTES)
    except TooLate:
        for around, _, files in os.walk(folder):  # it waits for pipes of that name
            if ".gitignore" in files:
                read_bytes(f"{around}/.gitignore")
        return ask(folder, *arguments, seconds=MORE_SECONDS, most=GIT_BYTES)


def git_folder(top: str) -> Path | None:
    """Returns the folder that all work trees of a repository share, for the one at `top`; None where that is none."""
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
    """Is true where the folder holds what fleet itself keeps on this machine."""
    path = f"{folder}/.gitignore"
    return os.path.isfile(path) and read_bytes(path) == OF_THE_HEAD.encode()


def above(paths: Iterable[str]) -> set[str]:
    """The folders that these lie in."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found
