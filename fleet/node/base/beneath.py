"""Holds a destination on this node open, so that another user of the node cannot redirect what is written there.

fleet looks each name up in the open folder around it, and never through a link. Each folder of the path must belong to
this user or root, and be closed to others (see check_folder, check_way). at() returns "/proc/self/fd/N/NAME", which
every call accepts as a path. The descriptor N stays that of the checked folder, even if another process moves the
folder. A caller must not pass such a path to a call that follows a link at its end.
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

OPEN_AT_ONCE = 16  # the most folders that one thread holds open
LINKS = 40  # the most links in one path, as in the kernel
HOLD = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WHOLE_MAP = ["0", "0", "4294967295"]  # uid_map of a process that is in no container with its own user ids


def inside_of(fd: int, name: bytes) -> bytes:
    return b"/proc/self/fd/%d/%s" % (fd, name)


def shown(path: bytes) -> str:
    """Returns a path as users write it, even if at() returned the path."""
    parts = path.split(b"/", 5)
    if len(parts) < 5 or (parts[1], parts[3]) != (b"proc", b"fd"):
        return decode(path)
    folder = os.readlink(b"/".join(parts[:5]))
    return decode(os.path.join(folder, *parts[5:]) if parts[5:] not in ([], [b"."]) else folder)


def made_in(folder: bytes) -> "os.stat_result | None":
    """Makes a file of mode 0600 in `folder`, removes it, and returns its lstat(). Returns None if that fails.

    The result shows which owner and mode a file of our user gets there: NFS servers turn root into another user, mounts
    map users, and some file systems show the same mode for all files."""
    probe = os.path.join(folder, b".fleet-who-%d-%d" % (os.getpid(), time.monotonic() * 1e6))
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        found = os.lstat(probe)
        os.unlink(probe)
    except OSError:
        return None
    return found


def is_ours(folder: bytes, uid: int) -> bool:
    """Returns whether `uid` is our user's id, or the id that a file of our user gets in the folder."""
    return uid == os.geteuid() or uid == getattr(made_in(folder), "st_uid", None)


def check_folder(path: bytes, st: "os.stat_result", trusted: "int | None" = None) -> None:
    """Raises Refused for a folder in which a user other than us, root and the user id `trusted` can replace our files.
    Accepts a folder to which a group may write: it is shared with the group on purpose. st: the folder's stat."""
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
    """Raises Refused for a parent folder of a destination, if the folder's owner is another user, who can replace the
    destination.

    Accepts a folder to which a group of this process may write: its members share the folder. Accepts a folder of the
    user nobody if all users may write to it, or if this is a container that maps users: then no real user owns it."""
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
    """Returns a descriptor of the folder at an absolute path. Follows links in the path if they are ours or root's.

    make: True makes missing folders, with `mode`. way: True checks each parent folder by check_way()."""
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
    """Returns the target of a link in the path of a destination. Raises Refused for a file, for another user's link, or
    for a link that leads nowhere. links: number of the path's links so far. further: the path goes on after this
    name."""
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
    """Changes the mode of a file or folder. Raises OSError for a link, and does not change the link's target."""
    with closing(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        os.chmod(b"/proc/self/fd/%d" % fd, mode)


class Beneath(threading.local):
    """Opens the folders below `top`, a descriptor. Paths are relative to the top; b"" is the top itself. trusted: see
    check_folder(). held: path -> descriptor of the folders that this thread holds open, the last used one last."""

    def __init__(self, top: int, trusted: "int | None" = None) -> None:
        self.top, self.trusted = top, trusted
        self.held: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def check(self) -> "Beneath":
        """Checks the top by check_folder(), and returns this object. One call is enough for all threads."""
        check_folder(inside_of(self.top, b"."), os.fstat(self.top), self.trusted)
        return self

    @property
    def name(self) -> bytes:
        """Returns the path of the top, which may have been moved since it was opened."""
        return os.readlink(b"/proc/self/fd/%d" % self.top)

    @property
    def path(self) -> bytes:
        """Returns a path of the top that other processes of our user can use while this process lives."""
        return b"/proc/%d/fd/%d" % (os.getpid(), self.top)

    def at(self, inside: bytes) -> bytes:
        """Returns a path of the file or folder `inside`. The caller must use the path at once. Raises OSError if a
        parent of `inside` is a link, or no folder."""
        around, _, name = inside.rpartition(b"/")
        return b"/proc/self/fd/%d/%s" % (self.folder(around), name or b".")

    def folder(self, inside: bytes) -> int:
        """Returns the descriptor of a folder. It stays open until this thread has used OPEN_AT_ONCE other folders."""
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
        """Closes the held folders at `inside` and below, because these no longer exist."""
        for held in [held for held in self.held if held == inside or held.startswith(inside + b"/")]:
            os.close(self.held.pop(held))
