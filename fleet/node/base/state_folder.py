"""Makes folders that are closed to other users: the state folder of a delivery, and ~/.fleet."""

import hashlib
import os
import stat
from contextlib import suppress

from fleet.node.base.beneath import HOLD, Beneath, is_ours, shown
from fleet.node.base.errors import Refused, on_os_error
from fleet.node.base.processes import read_file
from fleet.protocol.state import HOME

MOST_BYTES = 255  # the longest name on nearly every file system


def state_name(name: bytes, suffix: bytes) -> bytes:
    """Returns the name of the state folder next to the file or folder `name`. suffix: CODE_STATE or another one that
    names the kind of delivery."""
    if len(name) + len(suffix) < MOST_BYTES:
        return b"." + name + suffix
    return b"." + name[:180] + b"-" + hashlib.sha256(name).hexdigest()[:16].encode() + suffix


def mount_of(fd: int) -> "tuple[int, list[bytes]]":
    """Returns (device number of a folder's file system, its mount). A rename from one mount to another fails, even if
    both are of the same file system."""
    lines = read_file("/proc/self/fdinfo/%d" % fd).splitlines()
    return os.fstat(fd).st_dev, [line for line in lines if line.startswith(b"mnt_id:")]


def state_folder(around: "Beneath", name: bytes, suffix: bytes, target: "Beneath | None" = None) -> bytes:
    """Makes or finds the state folder (mode 0700) of the file or folder `name` in `around`. Returns a path of the state
    folder by a descriptor, which stays open.

    The state folder is in `around`, with the name of state_name(). It is in `target` (the folder `name` itself), with
    the name `suffix`, if `target` has it already or is a mount point, or if `around` is not writable. Raises Refused if
    another user made the state folder. Below /tmp any user can do that, and could then put files into the stage."""
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
    """Makes ~/.fleet, and the folder `names` below it. Returns the path of the latter. Sets the mode of ~/.fleet to
    0700, so that no other user can put anything there. Raises Refused if ~/.fleet belongs to another user. ~/.fleet may
    be our user's own link to another disk."""
    home = os.path.expanduser(home)
    path = os.path.join(home, HOME)
    os.makedirs(path, 0o700, exist_ok=True)
    host = None if os.geteuid() else os.stat(home).st_uid  # with sudo, root uses a user's home: that user may own both
    for found in (os.lstat(path), os.stat(path)):
        if found.st_uid != host and not is_ours(os.fsencode(path), found.st_uid):
            raise Refused("%s belongs to user id %d" % (path, found.st_uid), "remove it, or log in as that user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        with suppress(OSError):  # a file system without modes
            os.chmod(path, 0o700)
    below = os.path.join(path, *names)
    os.makedirs(below, 0o700, exist_ok=True)
    return below
