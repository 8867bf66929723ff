"""Finds what earlier runs and builds left on a host: locks without a holder, and processes that survived SIGKILL."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from fleet.errors import Reason
from fleet.rules.rule import Rule, Sentence, View, lookup


# -- locks of builds -------------------------------------------------------------------------------------------
def left_locks(sure: bool, view: View) -> Sentence | None:
    found = [str(build["path"]) for build in view.get("builds") or () if bool(build["sure"]) is sure]
    locks = [path for path in found if _is_for(lookup(view, "python.version"), path)]
    return Sentence(*of_locks(view["want"].host, locks, sure)) if locks else None


def _is_for(version: Any, lock: str) -> bool:
    """Returns whether the host's Python uses the folder of this lock. torch's own folders have names like py311_cpu."""
    found = re.search(r"/py(\d+)t?_[^/]*/[^/]+/lock$", lock)
    return found is None or not isinstance(version, str) or found[1] == "".join(version.split(".")[:2])


def of_locks(host: str, locks: Sequence[str], sure: bool = True) -> tuple[str, str]:
    """Returns (what is wrong with locks of builds that no process holds, the line to copy)."""
    which = ", ".join(locks)
    who = f"a build that was killed left {which}" if sure else f"no process on this node has {which} open"
    remedy = Reason(f"fleet exec -w {{hosts}} -- rm -f {shlex.join(locks)}", hosts=host)
    return f"{who}: a rank that wants what is built there waits for ever, without a message", remedy


# -- what runs left --------------------------------------------------------------------------------------
UNDYING = "what hangs in the kernel ends when the mount or the driver that it waits for answers, or with a reboot"


def left(view: View) -> list[str]:
    """Returns the processes that survived SIGKILL, as a node's last report on a run (`view`) has them."""
    return view.get("stuck") or [str(pid) for pid in view.get("left") or ()]


def survivors_text(view: View) -> str | None:
    return f"processes that would not die: {', '.join(left(view))}" if left(view) else None


def remains(ended: bool, view: View) -> Sentence | None:
    found = [each for each in view.get("remains") or () if bool(each["left"]) is not ended]
    runs = ", ".join(str(each["run"]) for each in found)
    which = ", ".join(str(pid) for each in found for pid in each["left"])
    lost = f"run {runs} had lost its supervisor: what was left of it is ended now"
    undead = f"processes of run {runs} would not die: {which}"
    return Sentence(lost if ended else undead) if found else None


FORGOTTEN = "nothing to do; was it killed by hand, or for want of memory? 'fleet exec -- dmesg' may say"
RULES = (
    Rule("build-lock", partial(left_locks, True), "clear", "locks of builds", "remove them", run=True),
    Rule(
        "build-lock-unsure", partial(left_locks, False), "clear", "locks of builds", "remove them", "warning", run=True
    ),
    Rule("run-forgotten", partial(remains, True), "clear", "earlier runs", FORGOTTEN, "warning", run=True),
    Rule("run-undying", partial(remains, False), "clear", "earlier runs", UNDYING, "warning", run=True),
)
