"""The folder, closed to others, in which a delivery remembers what it has done."""

import os
import stat
from contextlib import suppress

from fleet.node.base.beneath import HOLD, Beneath, own_uid, shown
from fleet.node.base.errors import Refused


def state_folder(around: "Beneath", name: bytes, suffix: bytes, target: "Beneath | None" = None) -> bytes:
    """Make or find the state folder (0700) of what is called `name` in the folder `around`, a Beneath: .NAME+suffix in
    it; or suffix inside `target`, the Beneath of a folder of that name, where that is a mount point or `around` cannot
    be written. A path that holds it open. Refused when somebody else made it: below /tmp anybody may have, to put
    other files into a stage behind our back."""
    beside, meta = around, around.at(b"." + name + suffix)
    if target is not None and (
        os.path.isdir(target.at(suffix))
        or os.fstat(target.top).st_dev != os.fstat(around.top).st_dev
        or not os.access(around.path, os.W_OK | os.X_OK)
    ):
        beside, meta = target, target.at(suffix)
    try:
        with suppress(FileExistsError):
            os.mkdir(meta, 0o700)
    except OSError as error:
        raise Refused("cannot make %s: %s" % (shown(meta), error.strerror), "choose another folder") from None
    found = os.lstat(meta)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() and found.st_uid != own_uid(beside.path):
        raise Refused(
            "%s was made by somebody else (user id %d)" % (shown(meta), found.st_uid),
            "do this as that user, remove it there, or choose another folder",
        )
    fd = os.open(meta, HOLD)
    held = os.fstat(fd)
    if (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino):
        raise Refused("%s changed meanwhile" % shown(meta), "run this again")
    if stat.S_IMODE(held.st_mode) & 0o077:
        os.chmod(b"/proc/self/fd/%d" % fd, 0o700)
    return b"/proc/%d/fd/%d" % (os.getpid(), fd)
