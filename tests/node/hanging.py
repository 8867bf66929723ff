"""A mount that answers nothing: what reads there hangs in the kernel, and outlives SIGKILL."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORCE, DETACH = 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def dead_mount(folder: Path) -> Iterator[tuple[Path, threading.Event]]:
    """A path on it, and what is set once somebody waits there for good; at the end the kernel lets go who waits."""
    taken = threading.Event()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if LIBC.mount(b"dead", os.fsencode(folder), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    try:
        greet(device)
        threading.Thread(target=swallow, args=(device, taken), daemon=True).start()
        yield folder / "file", taken
    finally:
        LIBC.umount2(os.fsencode(folder), FORCE)
        LIBC.umount2(os.fsencode(folder), DETACH)


def greet(device: int) -> None:
    """FUSE_INIT is answered, nothing else ever is."""
    _, _, unique = struct.unpack_from("IIQ", os.read(device, 1 << 17))
    body = struct.pack("IIIIHHII", 7, 31, 65536, 0, 12, 9, 65536, 1).ljust(64, b"\0")
    os.write(device, struct.pack("IiQ", 16 + len(body), 0, unique) + body)


def swallow(device: int, taken: threading.Event) -> None:
    try:
        while os.read(device, 1 << 17):
            taken.set()  # before that SIGKILL takes the request back
    except OSError:
        os.close(device)
