"""git of this machine, as fleet runs it.

It runs no hook, pager, diff or file system monitor program that a repository's settings name, and writes nothing. It
asks no question and takes nothing from GIT_* variables. It is ended when it takes long or its output is large.
"""

from __future__ import annotations

import os
import time

from fleet.transport.local import finish

GIT = (
    ("git", "--no-pager", "--no-optional-locks")
    + ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=keep")
    + ("-c", "submodule.recurse=false", "-c", "diff.autoRefreshIndex=false")
)
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1",
    "LC_ALL": "C",
}


class NoAnswer(Exception):
    """Why git gave none."""


class TooLate(NoAnswer):
    """It had to be ended."""


def ask(folder: str, *words: str, seconds: float, most: int, begun: float | None = None) -> bytes:
    """Returns what git prints, at most `most` bytes, within `seconds` since `begun`. Raises NoAnswer."""
    left = seconds if begun is None else max(0.0, begun + seconds - time.monotonic())
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | ENVIRONMENT
    try:
        status, out, complaint = finish([*GIT, "-C", folder, *words], b"", left, env=env, most=most)
    except OSError as error:
        raise NoAnswer(f"git: {error.strerror}") from None
    if len(out) > most:
        raise NoAnswer(f"git {words[0]} prints more than {most >> 20} MiB")
    if status is None:
        raise TooLate(f"git {words[0]} took more than {seconds:g} s")
    if status:
        first = complaint.decode("utf-8", "replace").strip().partition("\n")[0]
        raise NoAnswer(first.removeprefix("fatal: ") or f"git {words[0]} failed: {status}")
    return out
