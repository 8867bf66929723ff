"""Makes folders that are closed to other users: the state folder of a delivery, and ~/.fleet."""

import hashlib
import os
import stat
from contextlib import suppress

from fleet.node.base.beneath import HOLD, Beneath, is_ours, shown
from fleet.node.base.errors import Refused, on_os_error
from fleet.node.base.processes import read_file
from fleet.protocol.state import HOME

MOST_BYTES = 255  # of a name, on nearly every file system


def state_name(name: bytes, suffix: bytes) -> bytes:
    """Returns the name of the state folder next to `name`."""
    if len(name) + len(suffix) < MOST_BYTES:
        return b"." + name + suffix
    return b"." + name[:180] + b"-" + hashlib.sha256(name).hexdigest()[:16].encode() + suffix


def mount_of(fd: int) -> "tuple[int, list[bytes]]":
    """Returns the file system and the mount of a folder. A rename between two mounts fails, even of one file system."""
    lines = read_file("/proc/self/fdinfo/%d" % fd).splitlines()
    return os.fstat(fd).st_dev, [line for line in lines if line.startswith(b"mnt_id:")]


def state_folder(around: "Beneath", name: bytes, suffix: bytes, target: "Beneath | None" = None) -> bytes:
    """Makes or finds the state folder (0700) of the file or folder `name` in `around`. Returns a path of it, which
    stays open.

    It is in `around`, with the name of state_name(). If `target`, the folder itself, is a mount point, or `around` is
    not writable, it is in `target`, with the name `suffix`. Raises Refused if another user made it: below /tmp anyone
    can, and could put files into the stage."""
    anchor, meta = around, around.at(state_name(name, suffix))
    if target is not None and (
        os.path.isdir(target.at(suffix))
        or mount_of(target.top) != mount_of(around.top)
        or not os.access(around.path, os.W_OK | os.X_OK)
    ):
        anchor, meta = target, target.at(suffix)
    with on_os_error(Refused, "cannot make %s" % shown(meta), "choose another folder"), suppress(FileExistsError):
        os.mkdir(meta, 0o700)
    found = os.lstat(meta)
    if not stat.S_ISDIR(found.st_mode) or not is_ours(anchor.path, found.st_uid):
        raise Refused(
            "%s was made by another user (user id %d)" % (shown(meta), found.st_uid),
            "do this as that user, remove it there, or choose another folder",
        )
    fd = os.open(meta, HOLD)
    held = os.fstat(fd)
    if (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino):
        raise Refused("%s changed meanwhile" % shown(meta), "run this again")
    if stat.S_IMODE(held.st_mode) & 0o077:
        os.chmod(b"/proc/self/fd/%d" % fd, 0o700)
    return b"/proc/%d/fd/%d" % (os.getpid(), fd)


def own_home(*names: str, home: str = "~") -> str:
    """Makes ~/.fleet, or a folder below it, and returns its path. Sets its mode to 0700, so that no other user can put
    anything there. Raises Refused if it belongs to another user. It may be our own link to another disk."""
    home = os.path.expanduser(home)
    path = os.path.join(home, HOME)
    os.makedirs(path, 0o700, exist_ok=True)
    host = None if os.geteuid() else os.stat(home).st_uid  # with sudo, root uses a user's home
    for found in (os.lstat(path), os.stat(path)):
        if found.st_uid != host and not is_ours(os.fsencode(path), found.st_uid):
            raise Refused("%s belongs to user id %d" % (path, found.st_uid), "remove it, or log in as that user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        with suppress(OSError):  # a file system without modes
            os.chmod(path, 0o700)
    below = os.path.join(path, *names)
    os.makedirs(below, 0o700, exist_ok=True)
    return below
