"""Makes the notices about a node while its run is followed. Each function returns the arguments of Run.notify()."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.answers.event import RunEvent
from fleet.answers.run_events import (
    Blocked,
    BuildLock,
    Dropped,
    Full,
    Gap,
    RankOver,
    Remark,
    Resumed,
    Room,
    Status,
    Unblocked,
)
from fleet.errors import Reason, fill
from fleet.events import Level
from fleet.node.gang.ends import RankEnd
from fleet.ops.run.follow.follow import FollowEvent
from fleet.protocol.messages.run import RunState
from fleet.rules.left_behind import of_locks
from fleet.rules.units import size_text

NoticeParts = tuple[Level, str, RunEvent, str | None, str | None]  # level, message, event, host, hint
ROOM = "make room there: 'fleet exec -w {} -- df -h' shows where"
FULL = ": the disk of ~/.fleet/runs is full there: what its ranks write waits, and is lost if that lasts"
STATUS_FIELDS = ("state", "reason", "engine_status", "signal", "left", "disk_full")
# kind of a FollowEvent -> (level, text after the host, hint, class of the event)
REMARKS: Mapping[str, tuple[Level, str, str | None, type[Remark]]] = {
    "dropped": ("warning", ": {reason}; trying again", None, Dropped),
    "resumed": ("info", " is back; its logs go on where they stopped", None, Resumed),
    "blocked": (
        "error",
        ": logs cannot be written here: {reason}",
        "training goes on and its nodes keep every line; make room in {folder}",
        Blocked,
    ),
    "unblocked": ("info", ": logs are written again, nothing is lost", None, Unblocked),
}


def of_host(host: str, text: str) -> Reason:
    """Returns a message in which hosts with equal texts can be joined."""
    return Reason("{hosts}", hosts=host) + Reason.of_node(text)


def of_status(host: str, message: RunState) -> NoticeParts:
    if locks := message.get("builds"):
        what, remedy = of_locks(host, locks)
        return "warning", f"{host}: {what}", BuildLock(locks=locks), host, f"end this run, then: {remedy}"
    if message.get("state") != "running":
        state: dict[str, Any] = {name: value for name, value in message.items() if name in STATUS_FIELDS}
        return "info", f"{host}: {message.get('state')}", Status(**state), host, None
    if message.get("disk_full"):
        return "error", of_host(host, FULL), Full(), host, ROOM.format(host)
    return "info", of_host(host, ": there is room again for what its ranks write"), Room(), host, None


def of_rank(end: RankEnd, level: Level) -> NoticeParts:
    known = {name: getattr(end, name) for name in ("rank", "node_rank", "local_rank", "status", "signal", "attempt")}
    return level, end.sentence + ", stopped by fleet" * (end.asked and end.failed), RankOver(**known), end.host, None


def of_lost(end: RankEnd, lost: int) -> NoticeParts:
    """Returns the notice that `lost` bytes of a rank's output are lost, because its node's disk was full."""
    what = f"{size_text(lost)} that rank {end.rank} on {end.host} wrote are nowhere: the disk there took no more"
    return "error", what, Gap(rank=end.rank, bytes=lost), end.host, ROOM.format(end.host)


def of_connection(received: FollowEvent, folder: Path) -> NoticeParts:
    level, text, hint, kind = REMARKS[received.kind]
    event = kind(reason=None if received.data is None else str(received.data))
    details = {"folder": str(folder), "reason": event.reason or ""}
    return level, of_host(received.host, fill(text, details)), event, received.host, hint and fill(hint, details)
