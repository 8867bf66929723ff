"""Holds a destination on this node open, so that another user of the node cannot redirect what is written there.

Each name is looked up in the folder that is open, never through a link. Each folder of the path must belong to this
user or root and be closed to others (see check_folder, check_way). at() returns "/proc/self/fd/N/NAME", which every
call accepts as a path. N stays the folder that was checked, even if another process moves it. Such a path must not be
passed to a call that follows a link at its end.
"""

import collections
import errno
import os
import stat
import threading
import time
from contextlib import suppress
from functools import partial

from fleet.node.base.errors import Refused, closing, on_failure
from fleet.node.base.wire import count_progress, decode

OPEN_AT_ONCE = 16  # descriptors of one thread
LINKS = 40  # the kernel's limit
HOLD = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WHOLE_MAP = ["0", "0", "4294967295"]  # of user ids, unless this is a container with its own users


def inside_of(fd: int, name: bytes) -> bytes:
    return b"/proc/self/fd/%d/%s" % (fd, name)


def shown(path: bytes) -> str:
    """Returns how users write a path that at() returned, and any other path."""
    parts = path.split(b"/", 5)
    if len(parts) < 5 or (parts[1], parts[3]) != (b"proc", b"fd"):
        return decode(path)
    folder = os.readlink(b"/".join(parts[:5]))
    return decode(os.path.join(folder, *parts[5:]) if parts[5:] not in ([], [b"."]) else folder)


def made_in(folder: bytes) -> "os.stat_result | None":
    """Makes a file of mode 0600 in `folder`, removes it, and returns its lstat(), or None if no file can be made there.

    It shows how the folder presents our user and modes: NFS squashes root, mounts map users, and some file systems show
    one mode for everything."""
    probe = os.path.join(folder, b".fleet-who-%d-%d" % (os.getpid(), time.monotonic() * 1e6))
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        found = os.lstat(probe)
        os.unlink(probe)
    except OSError:
        return None
    return found


def is_ours(folder: bytes, uid: int) -> bool:
    """Returns whether that uid is our user, as the folder presents it."""
    return uid == os.geteuid() or uid == getattr(made_in(folder), "st_uid", None)


def check_folder(path: bytes, st: "os.stat_result", trusted: "int | None" = None) -> None:
    """Raises Refused for a folder in which a user other than us, root and the user id `trusted` can replace our files.
    A group that may write to it is accepted: the folder is shared with it on purpose."""
    if st.st_uid not in (0, trusted) and not is_ours(path, st.st_uid):
        raise Refused(
            "%s belongs to user id %d, who could lead what is written there elsewhere" % (shown(path), st.st_uid),
            "log in as that user, choose another folder, or chown this one",
        )
    if st.st_mode & stat.S_IWOTH and not st.st_mode & stat.S_ISVTX:
        if getattr(made_in(path), "st_mode", 0) & stat.S_IWOTH:
            return  # this file system does not keep modes
        raise Refused(
            "%s can be written by every user of the node, who could lead what is written there elsewhere" % shown(path),
            "on the node: chmod o-w %s" % shown(path),
        )


def check_way(path: bytes, st: "os.stat_result") -> None:
    """Raises Refused for a parent folder of a destination whose owner can replace the destination.

    A folder that our group may write to is accepted: it is shared with us. A folder of the user nobody is accepted if
    all may write to it, or if this is a container that maps users: no real user owns it."""
    groups = [os.getegid()] + os.getgroups()
    if st.st_mode & stat.S_IWGRP and st.st_gid in groups or st.st_uid in (0, os.geteuid()):
        return
    with open("/proc/sys/kernel/overflowuid") as f, open("/proc/self/uid_map") as maps:
        if st.st_uid == int(f.read()) and (st.st_mode & stat.S_IWOTH or maps.read().split() != WHOLE_MAP):
            return
    if not is_ours(path, st.st_uid):
        raise Refused(
            "%s, on the way there, belongs to user id %d, who could put another folder in its place"
            % (shown(path), st.st_uid),
            "log in as that user, or choose a folder that lies in none of theirs",
        )


def reach(path: bytes, make: bool = False, mode: int = 0o777, way: bool = False) -> int:
    """Returns a descriptor of the folder at an absolute path. Follows links in the path that are ours or root's.

    make: makes missing folders, with `mode`. way: checks each parent folder by check_way()."""
    names, links = path.split(b"/")[::-1], 0
    fd = os.open(b"/", HOLD)
    while names:
        name = names.pop()
        here = inside_of(fd, name or b".")
        try:
            inner = os.open(here, HOLD)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):  # another process has just made it
                os.mkdir(here, mode)
            names.append(name)
            continue
        except NotADirectoryError:
            links += 1
            names += follow(here, links, bool(names)).split(b"/")[::-1]
            inner = os.open(b"/" if names[-1] == b"" else inside_of(fd, b"."), HOLD)
        os.close(fd)
        fd = inner
        if way and names:
            check_way(inside_of(fd, b"."), os.fstat(fd))
    return fd


def follow(path: bytes, links: int, further: bool) -> bytes:
    """Returns the target of a link in the path of a destination. Raises Refused for a file, or another user's link.
    further: the path goes on after this name."""
    st = os.lstat(path)
    if not stat.S_ISLNK(st.st_mode):
        raise Refused("%s is a file%s" % (shown(path), ", in the way of this folder" * further), "name a folder")
    if st.st_uid not in (0, os.geteuid()):
        raise Refused(
            "%s is a link of user id %d, who could lead what is written there elsewhere" % (shown(path), st.st_uid),
            "name the folder that is meant itself",
        )
    if links > LINKS or not os.path.exists(path):
        raise Refused("%s is a link that leads nowhere" % shown(path), "name a folder")
    return os.readlink(path)


def chmod(path: bytes, mode: int) -> None:
    """Changes the mode of a file or folder, never of what a link leads to."""
    with closing(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        os.chmod(b"/proc/self/fd/%d" % fd, mode)


class Beneath(threading.local):
    """Opens the folders below `top`, a descriptor. Its paths are relative to the top, which is b"". trusted: see
    check_folder()."""

    def __init__(self, top: int, trusted: "int | None" = None) -> None:
        self.top, self.trusted = top, trusted
        self.held: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def check(self) -> "Beneath":
        """Checks the top by check_folder(), and returns itself. One call in one thread is enough."""
        check_folder(inside_of(self.top, b"."), os.fstat(self.top), self.trusted)
        return self

    @property
    def name(self) -> bytes:
        """Returns the path at which the top is now."""
        return os.readlink(b"/proc/self/fd/%d" % self.top)

    @property
    def path(self) -> bytes:
        """Returns a path of the top that our other processes can use while this one lives."""
        return b"/proc/%d/fd/%d" % (os.getpid(), self.top)

    def at(self, inside: bytes) -> bytes:
        """Returns a path of what `inside` names, to be used at once. Raises OSError if a parent of it is a link or no
        folder."""
        around, _, name = inside.rpartition(b"/")
        return b"/proc/self/fd/%d/%s" % (self.folder(around), name or b".")

    def folder(self, inside: bytes) -> int:
        """Returns the descriptor of a folder. It stays open until OPEN_AT_ONCE others have been used since."""
        count_progress()
        if inside in self.held:
            self.held.move_to_end(inside)
            return self.held[inside]
        names = []
        while inside and inside not in self.held:
            inside, _, name = inside.rpartition(b"/")
            names.append(name)
        fd = self.held.get(inside, self.top)
        for name in reversed(names):
            inside = inside + b"/" + name if inside else name
            fd = self.hold(inside, inside_of(fd, name))
        return fd

    def hold(self, inside: bytes, path: bytes) -> int:
        fd = os.open(path, HOLD)
        with on_failure(partial(os.close, fd)):
            check_folder(inside_of(fd, b"."), os.fstat(fd), self.trusted)
        self.held[inside] = fd
        if len(self.held) > OPEN_AT_ONCE:
            os.close(self.held.popitem(last=False)[1])
        return fd

    def forget(self, inside: bytes) -> None:
        """Closes the folders that it holds at `inside` and below: they no longer exist."""
        for held in [held for held in self.held if held == inside or held.startswith(inside + b"/")]:
            os.close(self.held.pop(held))
