"""Runs the git of this machine.

git runs so that it starts no hook, pager, diff or file system monitor program that a repository's settings name. It
writes nothing, prompts for nothing, and gets no GIT_* variables. It is ended if it takes long or its output is large.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from fleet import own
from fleet.delivery.patterns import Pattern, Scope, above, read_bytes
from fleet.transport.local import finish

GIT = (
    ("git", "--no-pager", "--no-optional-locks")
    + ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=keep")
    + ("-c", "submodule.recurse=false", "-c", "diff.autoRefreshIndex=false")
)
# time limits of a git command, and of the second try of a list
SECONDS, MORE_SECONDS = 5.0, 60.0
LIST_BYTES = 256 << 20
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1",
    "LC_ALL": "C",
}


class NoAnswer(Exception):
    """Holds the reason why git gave no answer."""


class TooLate(NoAnswer):
    """Is raised if git took too long, and was ended."""


def ask(folder: str, *arguments: str, seconds: float, most: int, begun: float | None = None) -> bytes:
    """Returns what git prints, at most `most` bytes, within `seconds` since `begun`. Raises NoAnswer."""
    left = seconds if begun is None else max(0.0, begun + seconds - time.monotonic())
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | ENVIRONMENT
    try:
        status, out, complaint = finish([*GIT, "-C", folder, *arguments], b"", left, env=env, most=most)
    except OSError as error:
        raise NoAnswer(f"git: {error.strerror}") from None
    if len(out) > most:
        raise NoAnswer(f"git {arguments[0]} prints more than {most >> 20} MiB")
    if status is None:
        raise TooLate(f"git {arguments[0]} took more than {seconds:g} s")
    if status:
        first = complaint.decode("utf-8", "replace").strip().partition("\n")[0]
        raise NoAnswer(first.removeprefix("fatal: ") or f"git {arguments[0]} failed: {status}")
    return out


def git_folder(top: str) -> Path | None:
    """Returns the git folder that all work trees of the repository share; None if `top` is no work tree."""
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


def _listed(folder: str, top: str) -> bytes:
    """Returns git's list of a folder's files. Raises NoAnswer, also if git's work tree does not begin at `top`."""
    work_tree = ask(folder, "rev-parse", "--show-toplevel", seconds=SECONDS, most=1 << 16).removesuffix(b"\n")
    if os.path.realpath(work_tree) != os.fsencode(os.path.realpath(top)):  # that is the case in a copy of a submodule
        raise NoAnswer(f"its git folder is that of {os.fsdecode(work_tree)}")
    arguments = ("ls-files", "-t", "-z", "--cached", "--others", "--exclude-standard")
    try:
        return ask(folder, *arguments, seconds=SECONDS, most=LIST_BYTES)
    except TooLate:
        for around, _, files in os.walk(folder):  # git may hang on a FIFO of that name, which read_bytes() reports
            if ".gitignore" in files:
                read_bytes(f"{around}/.gitignore")
        return ask(folder, *arguments, seconds=MORE_SECONDS, most=LIST_BYTES)


class Repository:
    """Holds git's list of a work tree, or describes a folder outside of any work tree. top: the uppermost folder.
    tracked: paths in the source that git tracks. others: untracked paths that git lists, and their folders as "a/".
    own: git gives no list, so fleet applies the ignore files itself. trouble: why git gives no list, or ""."""

    def __init__(self, top: str, at: str, folder: str | None) -> None:
        """Lists a work tree. folder: the folder that git lists; None if git must not run. at: the work tree's path in
        the source, "" or "a/b/"."""
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
        """Returns the ignore files that apply: each .gitignore, the user's ignore file, and info/exclude of the git
        folder."""
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
        """Returns the pattern by which git ignores this very path, or None. Patterns that match folders above the path
        do not count."""
        found = self.scope.last(path, folder)
        return None if found is None or found.negated else found
