"""Carries out, on a node, the requests that the run's leader sends: the control lines of follow.py."""

import os
from _signal import SIGCHLD, SIGINT, SIGKILL, SIGTERM
from contextlib import suppress

from fleet.node.base.errors import closing
from fleet.node.base.run_folder import lease_of, live_supervisors, note, read_json, request_stop, try_write, write_json
from fleet.node.base.types import Any
from fleet.protocol.state import LEASE, METRICS, OVER, SPEC, TRIMMED, is_log

PUNCH_HOLE_KEEP_SIZE = 3
BLOCK = 1 << 16
UNFIT = ""  # a key in TRIMMED: this file system has no holes


def is_led_by(folder: str, term: int) -> bool:
    """Returns whether no leader with a later term has been here, and records this term."""
    kept = read_json(os.path.join(folder, LEASE))
    if kept.get("term", 0) < term:
        try_write(os.path.join(folder, LEASE), dict(kept, term=term))
    return bool(kept.get("term", 0) <= term)


def carry_out(run: str, folder: str, message: Any, passive: bool = False, term: int = 0) -> bool:
    """Carries out a control line. Ignores an invalid one. Returns False if a later leader has been here. passive: do
    not renew the lease. term: of the leader; 0 for a head that only follows."""
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
            for who in live_supervisors(folder)[:1]:
                os.kill(who["pid"], SIGCHLD)  # wakes the supervisor
    return True


# -- freeing the disk space of logs that the leader has (--max-log): by holes, so that offsets stay --------------
def trimmed(folder: str) -> "dict[str, Any]":
    """Returns log -> the offset of its first byte that was not removed."""
    return read_json(os.path.join(folder, TRIMMED))


def trim(folder: str, have: "dict[str, int]", most: int) -> None:
    """Removes the beginnings of logs that the leader has. have: log -> how many bytes the leader has. most: how many of
    these bytes each log keeps. Leaves the log of samples (METRICS), which is bounded: each line of it must be JSON, and
    the note that readers put in place of a gap is none."""
    kept, record = trimmed(folder), os.path.join(folder, TRIMMED)
    for name in filter(is_log, have):
        if name == METRICS:
            continue
        with closing(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as fd:
            begin, end = kept.get(name, 0), min(have[name], os.fstat(fd).st_size - most) // BLOCK * BLOCK
            if end <= begin or UNFIT in kept:
                continue
            # the record is written before the hole is made: a process that reads zeros then finds them in the record
            write_json(record, dict(kept, **{name: end}))
            import ctypes  # takes some time, and most runs have no use for it

            libc = ctypes.CDLL(None, use_errno=True)
            if libc.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin)):
                kept[UNFIT] = ctypes.get_errno()
                write_json(record, kept)
                note(folder, "--max-log has no effect here: %s" % os.strerror(kept[UNFIT]))
            else:
                kept[name] = end
