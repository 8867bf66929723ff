"""Does what who leads a run requests of a node while it is followed: the control lines of follow.py."""

import os
from _signal import SIGCHLD, SIGINT, SIGKILL, SIGTERM
from contextlib import suppress

from fleet.node.base.errors import closing
from fleet.node.base.run_folder import lease_of, note, owners, read_json, request_stop, try_write, write_json
from fleet.node.base.types import Any
from fleet.protocol.state import LEASE, METRICS, OVER, SPEC, TRIMMED, is_log

PUNCH_HOLE_KEEP_SIZE = 3
BLOCK = 1 << 16
UNFIT = ""  # among the names in TRIMMED: this file system makes no holes


def is_led_by(folder: str, term: int) -> bool:
    """Returns whether no later leader has been here; from now on this one has."""
    kept = read_json(os.path.join(folder, LEASE))
    if kept.get("term", 0) < term:
        try_write(os.path.join(folder, LEASE), dict(kept, term=term))
    return bool(kept.get("term", 0) <= term)


def heed(run: str, folder: str, message: Any, passive: bool = False, term: int = 0) -> bool:
    """Does what a control line asks for; what makes no sense is passed over. Returns False where a later leader has
    been here. term: 0 of who only looks on."""
    op = message.get("op") if isinstance(message, dict) else None
    with suppress(OSError, ValueError, TypeError, KeyError):
        if term and not is_led_by(folder, term):
            return False
        if op in ("ping", "renew"):
            if not passive:
                os.utime(os.path.join(folder, LEASE))
        elif op == "detach":
            if lease_of(folder, read_json(os.path.join(folder, SPEC))) is not None:
                write_json(os.path.join(folder, LEASE), dict(read_json(os.path.join(folder, LEASE)), lease=None))
        elif op == "have":
            trim(folder, message["sizes"], read_json(os.path.join(folder, SPEC))["about"]["max_log"])
        elif op == "stop":
            reason, signum = message.get("reason") or "stopped", SIGINT if message.get("interrupt") else SIGTERM
            request_stop(folder, float(message["grace"]), str(reason), message.get("end"), signum)
        elif op == "renew-ranks":
            from fleet.node.run.trainers import trainers

            for pid in trainers(run).values():
                os.kill(pid, SIGKILL)
        elif op == "over":
            open(os.path.join(folder, OVER), "wb").close()
            for who in owners(folder)[:1]:
                os.kill(who["pid"], SIGCHLD)  # what a supervisor wakes up for
    return True


# -- the disk space of what the leader has of the logs (--max-log): holes, so that offsets stay ------------------
def trimmed(folder: str) -> "dict[str, Any]":
    """By log: where that begins which is still there."""
    return read_json(os.path.join(folder, TRIMMED))


def trim(folder: str, have: "dict[str, int]", most: int) -> None:
    """have: by log, how many bytes the leader has. most: bytes that a log keeps of them. Samples are kept whole: their
    number is bounded by itself, and a gap's line of text is none of them."""
    kept, record = trimmed(folder), os.path.join(folder, TRIMMED)
    for name in filter(is_log, have):
        if name == METRICS:
            continue
        with closing(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as fd:
            begin, end = kept.get(name, 0), min(have[name], os.fstat(fd).st_size - most) // BLOCK * BLOCK
            if end <= begin or UNFIT in kept:
                continue
            write_json(record, dict(kept, **{name: end}))  # first: who reads zeros looks here
            import ctypes  # takes some time, and most runs have no use for it

            libc = ctypes.CDLL(None, use_errno=True)
            if libc.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin)):
                kept[UNFIT] = ctypes.get_errno()
                write_json(record, kept)
                note(folder, "--max-log has no effect here: %s" % os.strerror(kept[UNFIT]))
            else:
                kept[name] = end
