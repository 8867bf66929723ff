"""What git says of the head's folder when a run starts: commit, branch, changes.

How it is asked: fleet/delivery/git.py.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace

from fleet.delivery.git import NoAnswer, ask

SECONDS = 5.0  # for all of it
STATUS_BYTES, DIFF_BYTES = 4 << 20, 4 << 20
_CHANGES = ("--ignore-submodules=dirty",)


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


def look(folder: str, seconds: float = SECONDS) -> tuple[Code, bytes]:
    """(what git says of it, the diff against its commit: b"" where there is none, or too much of it)."""
    code, begun = Code(folder), time.monotonic()
    try:
        words = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", *_CHANGES)
        code = _read(code, ask(folder, *words, seconds=seconds, begun=begun, most=STATUS_BYTES))
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
        diff = ask(folder, *changes, seconds=seconds, begun=begun, most=DIFF_BYTES)
    except NoAnswer as why:
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
