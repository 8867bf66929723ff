"""Gives back the disk space of what the leader has of a run's logs (--max-log): holes, so that offsets stay."""

import os

from fleet.node.base.run_folder import read_json, write_json
from fleet.node.base.types import Any
from fleet.protocol.state import NODE_LOG, TRIMMED

PUNCH_HOLE_KEEP_SIZE = 3
BLOCK = 1 << 16
UNFIT = ""  # among the names in TRIMMED: this file system makes no holes


def is_log(name: str) -> bool:
    return name == NODE_LOG or name.startswith("rank") and name.endswith((".out", ".err"))


def trimmed(folder: str) -> "dict[str, Any]":
    """By log: where that begins which is still there."""
    return read_json(os.path.join(folder, TRIMMED))


def trim(folder: str, have: "dict[str, int]", most: int) -> None:
    """have: by log, how many bytes the leader has. most: bytes that a log keeps of them."""
    kept, record = trimmed(folder), os.path.join(folder, TRIMMED)
    for name in filter(is_log, have):
        fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            begin, end = kept.get(name, 0), min(have[name], os.fstat(fd).st_size - most) // BLOCK * BLOCK
            if end <= begin or UNFIT in kept:
                continue
            write_json(record, dict(kept, **{name: end}))  # first: who reads zeros looks here
            import ctypes  # takes some time, and most runs have no use for it

            libc = ctypes.CDLL(None, use_errno=True)
            if libc.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin)):
                kept[UNFIT] = ctypes.get_errno()
                write_json(record, kept)
                line = "fleet: --max-log has no effect here: %s\n" % os.strerror(kept[UNFIT])
                with open(os.path.join(folder, NODE_LOG), "ab") as log:
                    log.write(line.encode())
            else:
                kept[name] = end
        finally:
            os.close(fd)
