"""Empties the pipes of a rank into its files. A part of rank.py; imports no module of fleet; Python 3.6 syntax."""

import fcntl
import os
import time
from _thread import allocate_lock, start_new_thread
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable

F_SETPIPE_SZ = 1031
PIPE, CHUNK, PIECE = 1 << 18, 1 << 20, 1 << 16  # bytes: of a pipe, of one read, of one write
MOST, PATIENCE, FULL_PATIENCE = 4 << 20, 5.0, 1.0  # bytes that wait for the disk; seconds, at the end of a full one's
RETRY = 0.2


def size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class Log:
    """A stream of the rank on its way from a pipe to a file. A thread writes: a disk that is full or hangs holds up no
    signal, and the rank for no longer than PATIENCE seconds. What comes then is dropped, and the file names the gap."""

    def __init__(self, path: str, now: "Callable[[], float]" = time.monotonic) -> None:
        self.path, self.fd, self.begins, self.now = path, -1, size(path), now
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        try:
            fcntl.fcntl(self.writer, F_SETPIPE_SZ, PIPE)
        except OSError:
            pass  # it has 64 KiB: the user has many pipes
        self.chunks: deque[memoryview] = deque()
        self.taken = self.written = self.gap = self.lost = 0
        self.moved, self.trouble, self.why = 0.0, "", ""
        self.over = False  # no process holds the pipe any more

    def stuck(self, seconds: float) -> bool:
        return self.taken > self.written and self.now() - self.moved > seconds

    def is_due(self) -> bool:
        return not self.over and (self.taken - self.written < MOST or self.stuck(PATIENCE))

    def read(self) -> int:
        """Take what is in the pipe, up to CHUNK; returns how many bytes that was."""
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return 0
        self.over = not data
        if data and self.taken - self.written >= MOST and self.stuck(PATIENCE):
            self.gap, self.why = self.gap + len(data), self.why or self.trouble or "the disk takes nothing"
        elif data:
            self.name_gap()
            self.add(data)
        return len(data)

    def name_gap(self) -> None:
        if self.gap:
            self.add(("\n[fleet: %d bytes lost here: %s]\n" % (self.gap, self.why)).encode())
            self.lost, self.gap, self.why = self.lost + self.gap, 0, ""

    def add(self, data: bytes) -> None:
        if self.taken == self.written:
            self.moved = self.now()
        self.taken += len(data)
        self.chunks.append(memoryview(data))

    def write(self) -> None:
        """By the thread: all that waits, as far as the disk takes it."""
        try:
            if self.fd < 0:
                self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            while self.chunks:
                size = os.write(self.fd, self.chunks[0][:PIECE])
                self.chunks[0] = self.chunks[0][size:]
                if not self.chunks[0]:
                    self.chunks.popleft()
                self.written += size
                if not self.trouble:  # what trickles into a full disk is no progress
                    self.moved = self.now()
            self.trouble = ""
        except OSError as error:
            self.trouble = error.strerror or "the disk takes nothing"

    def waits(self) -> bool:
        """At the end: whether the disk may yet take what is left."""
        return self.taken > self.written and not self.stuck(FULL_PATIENCE if self.trouble else PATIENCE)


class Logs:
    """Both streams, and the thread that writes them. flood: bytes of one read that more of them follow soon."""

    flood = PIPE // 4

    def __init__(self, base: str) -> None:
        self.all = [Log(base + ending) for ending in (".out", ".err")]

    def begin(self) -> None:
        """Not before the rank was started: it is to have one thread to fork from."""
        for log in self.all:
            if log.writer >= 0:
                os.close(log.writer)
            log.writer = -1
            log.chunks.clear()
            log.taken = log.written = log.gap = log.lost = 0
        self.wake = allocate_lock()
        start_new_thread(self.write, ())

    def write(self) -> None:
        while True:
            for log in self.all:
                log.write()
            self.wake.acquire(True, RETRY if any(log.trouble for log in self.all) else -1)

    def read(self, ready: "Iterable[int]") -> int:
        taken = sum(log.read() for log in self.all if log.reader in ready)
        if taken:
            self.notify()
        return taken

    def notify(self) -> None:
        if self.wake.locked():
            self.wake.release()

    def settle(self) -> None:
        """Wait until the files are there and have it all, or the disk takes no more."""
        until = time.monotonic() + PATIENCE
        for log in self.all:
            while log.fd < 0 and not log.trouble and time.monotonic() < until:
                time.sleep(0.001)
            while log.waits() or log.gap and log.taken == log.written:
                if log.gap and log.taken == log.written:
                    log.name_gap()
                    self.notify()
                time.sleep(0.001)
