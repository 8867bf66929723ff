"""Files that are the user's own business, on the head and where containers write a run's folder themselves."""

import errno
import os
import stat


def private(path: str, flags: int) -> int:
    """An opener of a file that is the user's own business. OSError where there is a link, or no regular file."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


def append_whole(path: str, data: bytes) -> bool:
    """At the end of a file, or, False, not at all: no half lines, where the disk is full. OSError."""
    with open(path, "ab", buffering=0, opener=private) as file:
        size = file.seek(0, os.SEEK_END)
        if file.write(data) == len(data):
            return True
        file.truncate(size)
        return False


def link_beside(folder: str, name: str) -> None:
    """Have a link of that name next to a folder lead to it; what is there and is no link, or a disk that has none,
    stays as it is."""
    around, own = os.path.split(folder)
    link, new = os.path.join(around, name), os.path.join(around, ".%s-%s" % (name, own))
    try:
        if os.path.islink(link) or not os.path.lexists(link):
            os.symlink(own, new)
            os.rename(new, link)
    except OSError:
        pass
