"""Does what who leads a run requests of a node while it is followed: the control lines of follow.py."""

import os
from _signal import SIGCHLD, SIGINT, SIGKILL, SIGTERM
from contextlib import suppress

from fleet.node.base.run_folder import detach_run, lease_of, owners, read_json, request_stop, try_write
from fleet.node.base.types import Any
from fleet.node.run.look.trim import trim
from fleet.protocol.state import LEASE, OVER, SPEC


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
                detach_run(folder)
        elif op == "have":
            trim(folder, message["sizes"], read_json(os.path.join(folder, SPEC))["about"]["max_log"])
        elif op == "stop":
            reason, signum = message.get("reason") or "stopped", SIGINT if message.get("interrupt") else SIGTERM
            request_stop(folder, float(message["grace"]), str(reason), message.get("end"), signum)
        elif op == "renew-ranks":
            from fleet.node.run.look.trainers import trainers

            for pid in trainers(run).values():
                os.kill(pid, SIGKILL)
        elif op == "over":
            open(os.path.join(folder, OVER), "wb").close()
            for who in owners(folder)[:1]:
                os.kill(who["pid"], SIGCHLD)  # what a supervisor wakes up for
    return True
