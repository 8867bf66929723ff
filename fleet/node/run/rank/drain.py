"""Copies the pipes of a rank into its files. It is a part of rank.py, imports no module of fleet, and has Python 3.6
syntax."""

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
# bytes in the queue; seconds to wait for a disk that makes no progress; the same at the end if writes have failed
MOST, PATIENCE, FULL_PATIENCE = 4 << 20, 5.0, 1.0
RETRY = 0.2  # seconds between two tries after a failed write


def size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class Log:
    """Copies one stream of the rank from a pipe to a file. A thread writes the file, so that a disk that is full or
    hangs delays no signal, and delays the rank for at most PATIENCE seconds. After that, output is dropped, and a line
    marks the gap.

    begins: bytes in the file at the start. taken: bytes for the file since then; written: how many of them are in it.
    gap: bytes dropped since the last line about a gap; lost: bytes dropped before. moved: when the disk last made
    progress. trouble: why the last write failed, or "". why: why the gap began. over: no process has the pipe open."""

    def __init__(self, path: str, now: "Callable[[], float]" = time.monotonic) -> None:
        self.path, self.fd, self.begins, self.now = path, -1, size(path), now
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        try:
            fcntl.fcntl(self.writer, F_SETPIPE_SZ, PIPE)
        except OSError:
            pass  # the pipe keeps 64 KiB if the user has too many pipes
        self.chunks: deque[memoryview] = deque()
        self.taken = self.written = self.gap = self.lost = 0
        self.moved, self.trouble, self.why = 0.0, "", ""
        self.over = False

    def stuck(self, seconds: float) -> bool:
        return self.taken > self.written and self.now() - self.moved > seconds

    def is_due(self) -> bool:
        return not self.over and (self.taken - self.written < MOST or self.stuck(PATIENCE))

    def read(self) -> int:
        """Reads up to CHUNK bytes from the pipe, and returns their number."""
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
        """Adds a line about the dropped bytes, if there are any."""
        if self.gap:
            self.add(("\n[fleet: %d bytes lost here: %s]\n" % (self.gap, self.why)).encode())
            self.lost, self.gap, self.why = self.lost + self.gap, 0, ""

    def add(self, data: bytes) -> None:
        if self.taken == self.written:
            self.moved = self.now()
        self.taken += len(data)
        self.chunks.append(memoryview(data))

    def write(self) -> None:
        """Writes the queue to the file until the disk accepts no more. Only the writing thread calls this."""
        try:
            if self.fd < 0:
                self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            while self.chunks:
                size = os.write(self.fd, self.chunks[0][:PIECE])
                self.chunks[0] = self.chunks[0][size:]
                if not self.chunks[0]:
                    self.chunks.popleft()
                self.written += size
                if not self.trouble:  # single bytes on a full disk are no progress
                    self.moved = self.now()
            self.trouble = ""
        except OSError as error:
            self.trouble = error.strerror or "the disk takes nothing"

    def waits(self) -> bool:
        """Returns whether the disk may still accept the rest of the queue, after the rank's end."""
        return self.taken > self.written and not self.stuck(FULL_PATIENCE if self.trouble else PATIENCE)


class Logs:
    """Copies both streams of the rank, with a thread that writes. flood: after a read of at least so many bytes, more
    output will follow soon."""

    flood = PIPE // 4

    def __init__(self, base: str) -> None:
        self.all = [Log(base + ending) for ending in (".out", ".err")]

    def begin(self) -> None:
        """Starts the writing thread. Must be called after the rank's start, as fork() needs a process with one
        thread."""
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
        """Waits until the files have all the output, or the disk accepts no more."""
        until = time.monotonic() + PATIENCE
        for log in self.all:
            while log.fd < 0 and not log.trouble and time.monotonic() < until:
                time.sleep(0.001)
            while log.waits() or log.gap and log.taken == log.written:
                if log.gap and log.taken == log.written:
                    log.name_gap()
                    self.notify()
                time.sleep(0.001)
