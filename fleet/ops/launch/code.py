"""What git says of the head's folder when a run starts: commit, branch, changes.

git runs no hook, pager, diff or file system monitor program that the repository's settings name, writes nothing, asks
nobody, and is ended when it takes long or tells much.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from fleet.transport.local import finish

SECONDS = 5.0  # for all of it
STATUS_BYTES, DIFF_BYTES = 4 << 20, 4 << 20
GIT = (
    ("git", "--no-pager", "--no-optional-locks")
    + ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=keep")
    + ("-c", "submodule.recurse=false", "-c", "diff.autoRefreshIndex=false")
)
ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
_CHANGES = ("--ignore-submodules=dirty",)


class NotTold(Exception):
    """Why git did not answer."""


@dataclass(frozen=True)
class Code:
    """folder: where it was asked. commit: full, None where there is none. branch: None where none is checked out.
    dirty: files that git knows have changed. untracked: how many entries it does not know. sha256: of the diff. why:
    what is not known, and for what reason."""

    folder: str
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    untracked: int | None = None
    sha256: str | None = None
    why: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look(folder: str, seconds: float = SECONDS) -> tuple[Code, bytes]:
    """(what git says of it, the diff against its commit: b"" where there is none, or too much of it)."""
    code, until = Code(folder), time.monotonic() + seconds
    try:
        words = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", *_CHANGES)
        code = _read(code, _git(folder, *words, until=until, most=STATUS_BYTES))
        if not code.dirty or code.commit is None:
            return code, b""
        changes = (
            "diff",
            "--binary",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--no-relative",
            *_CHANGES,
            "HEAD",
        )
        diff = _git(folder, *changes, until=until, most=DIFF_BYTES)
    except NotTold as why:
        return replace(code, why=str(why)), b""
    return replace(code, sha256=hashlib.sha256(diff).hexdigest()), diff


def _read(code: Code, status: bytes) -> Code:
    lines = status.decode("utf-8", "replace").split("\0")
    said = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and " " in line[2:])
    commit, branch = said.get("branch.oid"), said.get("branch.head")
    return replace(
        code,
        commit=None if commit == "(initial)" else commit,
        branch=None if branch == "(detached)" else branch,
        dirty=any(line[:2] in ("1 ", "2 ", "u ") for line in lines),
        untracked=sum(line.startswith("? ") for line in lines),
    )


def _git(folder: str, *words: str, until: float, most: int) -> bytes:
    """What it prints. NotTold."""
    argv, seconds = [*GIT, "-C", folder, *words], max(0.0, until - time.monotonic())
    try:
        status, said, complaint = finish(argv, b"", seconds, env={**os.environ, **ENVIRONMENT}, most=most)
    except OSError as error:
        raise NotTold(f"git: {error.strerror}") from None
    if len(said) > most:
        raise NotTold(f"git {words[0]} tells more than {most >> 20} MiB")
    if status is None:
        raise NotTold(f"git {words[0]} took more than {SECONDS:.0f} s")
    if status:
        first = complaint.decode("utf-8", "replace").strip().partition("\n")[0]
        raise NotTold(first.removeprefix("fatal: ") or f"git {words[0]} failed: {status}")
    return said
