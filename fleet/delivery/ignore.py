"""Selects the files of a folder that are sent. It takes git's list, applies .fleetignore, and omits the files that
held_back.py names.

In a git work tree, a file that git tracks is sent, no matter which .gitignore pattern matches it. Submodules and clones
in the folder have their own lists. Outside of work trees, and if git gives no list, patterns.py reads the ignore files.
The lines of .fleetignore come after all of git's, and apply to tracked files, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.delivery.git import Repository, git_folder
from fleet.delivery.held_back import KEY_NAMES, MADE_HERE, credentials, is_environment, is_used
from fleet.delivery.patterns import Pattern, Scope, read_bytes
from fleet.model import Host
from fleet.node.delivery.tree import SECRETS, is_private_key
from fleet.protocol.state import OF_THE_HEAD
from fleet.rules.units import few

Why = Pattern | str  # the reason why a path is left out
UNLISTED = "git does not list it"


class SourceRules:
    """Holds the rules of a source, and what they excluded so far. everything (--all): send environments, caches and
    folders such as .ssh, too. held_back: kind of file that was held back -> its paths. sent: private keys that are sent
    because git tracks them. ignored: paths that patterns exclude; for an excluded folder its own path, not those below
    it. outer: the source and its parents that lie below the top of the work tree, the innermost first."""

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
        alone: the work tree around the source ignores the whole source, so the rules of that work tree do not apply."""
        self.root, self.prefix = root, os.path.join(root, "")
        self.everything, self.brought = everything, frozenset(brought)
        self.hosts, self.places, self.credentials = hosts, (root, *places), credentials(hosts)
        self.held_back: dict[str, list[str]] = {}
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
        self.at_root = Rules(self, first)

    def notices(self) -> list[str]:
        """Returns what the sending user should know, one line each."""
        found = [
            f"git does not list {at or self.root} ({one.trouble}): fleet reads its ignore files itself, and "
            "counts no file as tracked"
            for at, one in self.repositories.items()
            if one.trouble
        ]
        if not MADE_HERE.issuperset(self.held_back):  # caches alone are worth no line
            named = ", ".join(_counted(kind, sorted(paths)) for kind, paths in sorted(self.held_back.items()))
            found.append(f"not sent: {named}; --all sends it, except keys and password files")
        if self.sent:
            found.append(f"private keys that git tracks are sent: {few(sorted(self.sent))}")
        return found

    @property
    def left_out(self) -> str | None:
        """Returns the text about what patterns exclude, None if they exclude nothing."""
        count = len(self.ignored)
        return f"left out by ignore files: {few(sorted(self.ignored))} ({count} in all)" if count else None

    def kind_held_back(self, path: str, folder: bool, is_key: bool, again: Pattern | None) -> str | None:
        """Returns the kind of file ("private key", ".venv") for which a path is held back, None if it is not. again:
        the line of .fleetignore that includes it again."""
        name, full = path.rpartition("/")[2], self.prefix + path
        if name in SECRETS:
            return None if self.everything else name
        if full in self.credentials:
            return "password or identity file"
        if is_key:
            return "private key"
        if not folder or self.everything:
            return None
        if again is not None and again.text.rstrip("/").rpartition("/")[2].lstrip("!") == name:
            return None
        is_made_here = name in MADE_HERE or is_environment(full) and not is_used(path, self.hosts, self.places)
        return name if is_made_here else None

    def why(self, path: str, folder: bool = False) -> Why | None:
        """Returns why a path is not sent, None if no rule excludes it. The path need not exist."""
        rules, names = self.at_root, path.split("/")
        for count in range(1, len(names) + 1):
            at = "/".join(names[:count])
            found = rules.judge(at, folder or count < len(names))
            if not isinstance(found, Rules):
                return found
            nested = self.repositories.get(f"{at}/")
            rules = found if nested is None or found.excluded_because is not None else Rules(self, nested)
        return None


class Rules(NamedTuple):
    """Decides which children of a folder are sent. included_again: .fleetignore includes the folder again, so git's
    list does not count. excluded_because: why the folder is excluded; None if it is not. In an excluded folder only
    files are sent that git tracks or .fleetignore includes."""

    source: SourceRules
    repository: Repository
    included_again: bool = False
    excluded_because: Why | None = None

    def enter(self, prefix: str, names: Sequence[str]) -> Rules:
        """Returns the rules in the folder `prefix` of the source ("" or "a/b/"), which holds these names."""
        source, repository = self.source, self.repository
        folder = source.prefix + prefix
        is_submodule = prefix[:-1] in self.repository.tracked and prefix not in self.repository.others
        if (".git" in names or is_submodule) and prefix not in source.repositories and self.excluded_because is None:
            is_there = git_folder(folder) is not None
            if is_there or is_submodule and names:
                # if git gave no list of the source's repository, it is not run for this one
                listed = is_there and not source.repositories[""].trouble
                repository = source.repositories[prefix] = Repository(folder[:-1], prefix, folder if listed else None)
            if prefix[:-1] in self.repository.tracked_folders:  # the repository around it tracks files in it, too
                repository.tracked |= {path for path in self.repository.tracked if path.startswith(prefix)}
                repository.others |= {path for path in self.repository.others if path.startswith(prefix)}
        source.fleet.of(folder, ".fleetignore" in names)
        repository.scope.of(folder, ".gitignore" in names)
        return self if repository is self.repository else Rules(source, repository)

    def take(self, path: str, child: os.DirEntry[str], folder: bool) -> Rules | None:
        """Returns the rules that apply in a child of the folder; None if the child is left out. A file is sent if the
        result is not None."""
        if not folder and path in self.repository.tracked and self.source.fleet.empty and not path.endswith(KEY_NAMES):
            return self  # most files; they need not be opened
        found = self.judge(path, folder, child)
        if isinstance(found, Rules):
            return found
        if isinstance(found, Pattern) or found == UNLISTED:
            self.source.ignored.append(path + "/" * folder)
        return None

    def judge(self, path: str, folder: bool, child: os.DirEntry[str] | None = None) -> Rules | Why:
        """Returns the rules in a child of the folder, or why it is left out. Without `child`, it adds nothing to the
        source's `held_back` and `sent`."""
        source, repository = self.source, self.repository
        name, full = path.rpartition("/")[2], source.prefix + path
        if name == ".git" or folder and is_fleets(full):
            return f"fleet never sends {name}"
        fleets = source.fleet.last(full, folder)
        if fleets is not None and not fleets.negated:
            return fleets
        known = path in repository.tracked
        above = folder and path in repository.tracked_folders
        why = None if known else self._ignored(path, folder, child)
        if why is None:
            inner = self._replace(excluded_because=None) if self.excluded_because else self
        elif fleets is not None:
            inner = self._replace(included_again=True, excluded_because=None)
        elif above or folder and source.fleet.reaches(full):
            inner = self._replace(excluded_because=why)
        else:
            return why
        is_key = (
            child is not None
            and (not known or path.endswith(KEY_NAMES))
            and child.is_file(follow_symlinks=False)
            and is_private_key(child.path, child.stat().st_size)
        )
        if known:
            source.sent += [path] if is_key else []
        elif not folder and path in source.brought:
            return "fleet does not send a file that get fetched"
        elif not above and (kind := source.kind_held_back(path, folder, is_key, fleets)):
            if child is not None and inner.excluded_because is None:
                source.held_back.setdefault(kind, []).append(path)
            return f"fleet does not send a {kind} by default"
        return inner

    def _ignored(self, path: str, folder: bool, child: os.DirEntry[str] | None) -> Why | None:
        """Returns why git does not list an untracked path, None if it does."""
        repository = self.repository
        if self.excluded_because is not None or path + "/" * folder in repository.others:
            return self.excluded_because
        by_list = not (folder or child is None or self.included_again or repository.own)
        if by_list and child and (child.is_symlink() or child.is_file(follow_symlinks=False)):
            return UNLISTED
        return repository.ignores(self.source.prefix + path, folder)


def _counted(kind: str, paths: Sequence[str]) -> str:
    """Returns the text of a notice: "2 private keys (a.pem, b.pem)", ".venv", "__pycache__ (12)"."""
    if " " in kind:
        return f"{len(paths)} {kind}s ({few(paths)})" if len(paths) > 1 else f"{kind} {paths[0]}"
    return f"{kind} ({len(paths)})" if len(paths) > 1 else paths[0]


def is_fleets(folder: str) -> bool:
    """Is true if the folder is one that fleet keeps for itself on the head: runs/ or builds/."""
    path = f"{folder}/.gitignore"
    return os.path.isfile(path) and read_bytes(path) == OF_THE_HEAD.encode()


def why_not_sent(root: Path, path: str) -> Why | None:
    """Returns why a file below the folder `root` is not sent with it; None where it is, or does not exist."""
    return SourceRules(os.path.realpath(root)).why(path) if os.path.isfile(root / path) else None


def missed(root: Path, path: str) -> str | None:
    """Returns what to do about a path that a node misses: it lies in `root`, and a rule excludes it. None elsewhere."""
    name = os.path.normpath(path)
    if name.startswith(("/", "../")) or not os.path.lexists(root / name):
        return None
    why = SourceRules(os.path.realpath(root)).why(name, os.path.isdir(root / name))
    return why and f"{name} is here and not sent, by {why}; a line '!{name}' in .fleetignore includes it again"
