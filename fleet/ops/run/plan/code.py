"""Reads git's facts of the head's folder when a run starts: commit, branch, changes.

How git is run: fleet/delivery/git.py."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from fleet.delivery.git import NoAnswer, ask

SECONDS = 5.0  # for all of it
STATUS_BYTES, DIFF_BYTES = 4 << 20, 4 << 20
DIFF = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative")
_CHANGES = ("--ignore-submodules=dirty",)


def look(folder: str, seconds: float = SECONDS) -> tuple[dict[str, Any], bytes]:
    """Returns what git reports of it, and the diff against its commit: b"" where there is none, or too much of it.

    folder: where git ran. commit: full, None where there is none. branch: None where none is checked out. dirty:
    files that git knows have changed. untracked: how many entries it does not know. sha256: of the diff. why: what is
    not known, and for what reason."""
    names = ("commit", "branch", "dirty", "untracked", "sha256", "why")
    code, diff, begun = {"folder": folder, **dict.fromkeys(names)}, b"", time.monotonic()
    try:
        arguments = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", *_CHANGES)
        code |= _read(ask(folder, *arguments, seconds=seconds, begun=begun, most=STATUS_BYTES))
        if code["dirty"] and code["commit"] is not None:
            diff = ask(folder, *DIFF, *_CHANGES, "HEAD", seconds=seconds, begun=begun, most=DIFF_BYTES)
            code["sha256"] = hashlib.sha256(diff).hexdigest()
    except NoAnswer as why:
        code["why"] = str(why)
    return code, diff


def _read(status: bytes) -> dict[str, Any]:
    lines = status.decode("utf-8", "replace").split("\0")
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and " " in line[2:])
    commit, branch = headers.get("branch.oid"), headers.get("branch.head")
    return {
        "commit": None if commit == "(initial)" else commit,
        "branch": None if branch == "(detached)" else branch,
        "dirty": any(line[:2] in ("1 ", "2 ", "u ") for line in lines),
        "untracked": sum(line.startswith("? ") for line in lines),
    }
