"""Checks the free space of a destination, and writes files with holes. Deliveries of code and of data use it."""

import os

from fleet.node.base.beneath import shown
from fleet.node.base.errors import Refused
from fleet.node.base.wire import grouped


def check_space(needs: "list[tuple[bytes, int, int]]", hint: str) -> None:
    """Raises Refused if the files do not fit on their file systems. needs: (folder, bytes to be written, number of new
    files) of each need. hint: that of a refusal for too few bytes."""
    known = {folder: os.stat(folder).st_dev for folder in {need[0] for need in needs}}
    for here in grouped((known[need[0]], need) for need in needs).values():
        folder, count, files = here[0][0], sum(need[1] for need in here), sum(need[2] for need in here)
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        if count > free:
            mib = count / 2**20, shown(folder), free / 2**20
            raise Refused("%.1f MiB are to be written to %s, %.1f MiB are free" % mib, hint)
        if space.f_files and files > space.f_favail:
            raise Refused(
                "%d files are to be made in %s, inodes for %d are free" % (files, shown(folder), space.f_favail),
                "remove files there ('df -i' counts them), or make it one archive",
            )


BLOCK_OF_ZEROS = bytes(4096)


def write_sparse(fd: int, data: memoryview, at: int) -> None:
    """Writes data at the offset `at`. The file must not have data from there on. Blocks of zeros become holes."""
    view = memoryview(data)
    begin = end = 0
    while end < len(view):
        here = end
        end = min(len(view), here + 4096 - (at + here) % 4096)
        if not view[here] and not view[end - 1] and view[here:end].tobytes() == BLOCK_OF_ZEROS[: end - here]:
            write_at(fd, view[begin:here], at + begin)
            begin = end
    write_at(fd, view[begin:], at + begin)
    if begin == end:
        os.ftruncate(fd, at + end)


def write_at(fd: int, view: memoryview, at: int) -> None:
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count
