"""Starts node programs: this python, which has imported what they use, is forked for each, and then reads the bootstrap
from its stdin as any node's python does. It takes {"home", "boot", "kill": n, "whole": s, ...} and three descriptors
over the socket that is its stdin, says the pid, and later how that ended.

A program may be made to end (as kill -9 does) before its n-th change to a file, in the middle of a write, or to see
the times of a file system that keeps whole seconds.
"""

import array
import base64
import collections
import errno
import fcntl
import hashlib
import importlib
import json
import marshal
import operator
import os
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any

# what node programs import, so that they need not
KNOWN = [base64, collections, errno, fcntl, hashlib, marshal, operator, re, shutil, struct, subprocess, tempfile]
KNOWN += [threading, zlib]
CHANGES = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.utime",
    "os.symlink",
    "os.link",
    "os.truncate",
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def kill_before(number: int) -> None:
    """End this process before its change of that number to anything on disk; in the middle, where it is a write."""
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os._exit(137)

    def seen(event: str, args: Any) -> None:
        if event in CHANGES or event == "open" and isinstance(args[2], int) and args[2] & WRITES:
            count()

    plain = os.write

    def write(fd: int, data: Any) -> int:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            if left[0] == 1:
                plain(fd, bytes(data)[: len(data) // 2])
            count()
        return plain(fd, data)

    os.write = write
    sys.addaudithook(seen)


def whole(seconds: float) -> None:
    """Times of files are kept in multiples of so many seconds, and cut off."""
    unit = int(seconds * 10**9)

    def coarse(found: Any) -> Any:
        names = [name for name in dir(found) if name.startswith("st_")]
        values = {name: getattr(found, name) for name in names}
        for name in ("st_atime", "st_mtime", "st_ctime"):
            values[name + "_ns"] = values[name + "_ns"] // unit * unit
            values[name] = values[name + "_ns"] / 10**9
        ten = [int(each) for each in tuple(found)[:10]]
        return os.stat_result(ten, values)

    def coarsely(plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **more: coarse(plain(*args, **more))

    for name in ("stat", "lstat", "fstat"):
        plain = getattr(os, name)
        setattr(os, name, coarsely(plain))
    plain_utime = os.utime

    def utime(path: Any, times: Any = None, *, ns: Any = None, **more: Any) -> None:
        if ns is not None:
            ns = tuple(each // unit * unit for each in ns)
            plain_utime(path, ns=ns, **more)
        else:
            plain_utime(path, times, **more)

    os.utime = utime
    scandir = os.scandir

    class Found:
        def __init__(self, entry: Any) -> None:
            self._entry = entry

        def __getattr__(self, name: str) -> Any:
            return getattr(self._entry, name)

        def __fspath__(self) -> Any:
            return self._entry.path

        def stat(self, *, follow_symlinks: bool = True) -> Any:
            return coarse(self._entry.stat(follow_symlinks=follow_symlinks))

    class Scan:
        def __init__(self, *args: Any) -> None:
            self._scan = scandir(*args)

        def __iter__(self) -> Iterator[Any]:
            return map(Found, self._scan)

        def __next__(self) -> Any:
            return Found(next(self._scan))

        def __enter__(self) -> "Scan":
            return self

        def __exit__(self, *_error: object) -> None:
            self._scan.close()

        def close(self) -> None:
            self._scan.close()

    os.scandir = Scan  # type: ignore[assignment]


def ahead(seconds: float) -> None:
    """The clock of this node is off by so much."""
    plain, plain_ns = time.time, time.time_ns
    time.time = lambda: plain() + seconds
    time.time_ns = lambda: plain_ns() + int(seconds * 10**9)


def lockless(code: int) -> None:
    """Locks fail with this error, as on a file system that has none."""

    def lockf(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    fcntl.lockf = lockf


def become(asked: Any, fds: list[int]) -> None:
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 256)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = ["-c"]
    os.environ["HOME"] = asked["home"]
    os.umask(0o022)
    os.chdir(asked["home"])
    if asked.get("whole"):
        whole(asked["whole"])
    if asked.get("ahead"):
        ahead(asked["ahead"])
    if asked.get("lockless"):
        lockless(getattr(errno, asked["lockless"]))
    if asked.get("kill"):
        kill_before(asked["kill"])
    try:
        exec(asked["boot"], {"__name__": "__main__"})
        sys.stdout.flush()
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Of the head's programs: sys.argv names where they lie, and modules of theirs."""
    if len(sys.argv) > 1:
        sys.path[:0] = sys.argv[1].split(":")
        for name in sys.argv[2:]:
            importlib.import_module(name)
    sock = socket.socket(fileno=0)
    out = os.fdopen(os.dup(1), "w", 1)
    ended_read, ended_write = os.pipe()
    os.set_blocking(ended_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_write, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(ended_read, select.POLLIN)
    while True:
        for fd, _event in poll.poll():
            if fd == ended_read:
                os.read(ended_read, 4096)
                while True:
                    try:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                    except ChildProcessError:
                        break
                    if not pid:
                        break
                    print(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}), file=out, flush=True)
                continue
            data, ancillary, _flags, _address = sock.recvmsg(1 << 16, socket.CMSG_SPACE(12))
            if not data:
                return
            fds = array.array("i")
            for _level, _kind, sent in ancillary:
                fds.frombytes(sent[: len(sent) - len(sent) % fds.itemsize])
            asked = json.loads(data)
            pid = os.fork()
            if not pid:
                try:
                    become(asked, list(fds))
                finally:
                    os._exit(1)
            for each in fds:
                os.close(each)
            print(json.dumps({"begun": pid}), file=out, flush=True)


main()
