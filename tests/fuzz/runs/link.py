"""The network between heads and nodes: sockets led to sockets, a pair of ends a connection, which may be cut, slowed
or reset. A cut keeps what was on its way, as TCP does."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

MOST = 1 << 18  # bytes on the way, before a sender waits
SLICE = 0.02


class Pair:
    """A connection: what came of each end, and has not gone to the other."""

    def __init__(self, road: tuple[str, str], head: socket.socket) -> None:
        self.road, self.ends = road, [head]
        self.waiting = [bytearray(), bytearray()]  # by the end that it came from
        self.over = [False, False]  # nothing more comes from that end
        self.passed_on = [False, False]


class Link(threading.Thread):
    """roads: (head, node) -> the socket that a head connects to. there: a node's own socket."""

    def __init__(self, folder: Path, heads: list[str], nodes: list[str], there: Callable[[str], Path]) -> None:
        super().__init__(name="link", daemon=True)
        self._there, self._pairs = there, list[Pair]()
        self._listeners = dict[int, tuple[tuple[str, str], socket.socket]]()
        self._cut, self._rate = set[tuple[str, str]](), dict[tuple[str, str], float]()
        self._allowed = dict[tuple[str, str], float]()
        self._lock, self._waker = threading.Lock(), os.pipe()
        self._over = False
        for head in heads:
            (folder / head).mkdir(parents=True)
            for node in nodes:
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(str(folder / head / node))
                listener.listen(64)
                listener.setblocking(False)
                self._listeners[listener.fileno()] = ((head, node), listener)

    # -- what befalls it, from other threads -------------------------------------------------------------
    def cut(self, *roads: tuple[str, str]) -> None:
        with self._lock:
            self._cut.update(roads)
        self._wake()

    def heal(self, *roads: tuple[str, str]) -> None:
        with self._lock:
            self._cut.difference_update(roads)
        self._wake()

    def slow(self, rate: float | None, *roads: tuple[str, str]) -> None:
        """rate: bytes a second, both ways; None: as fast as may be."""
        with self._lock:
            for road in roads:
                self._rate.pop(road, None)
                if rate is not None:
                    self._rate[road] = rate
        self._wake()

    def reset(self, *roads: tuple[str, str]) -> None:
        """What is connected there is no more, for both ends."""
        with self._lock:
            gone = [pair for pair in self._pairs if pair.road in roads]
            self._pairs = [pair for pair in self._pairs if pair not in gone]
            for pair in gone:
                _close(pair)
        self._wake()

    def close(self) -> None:
        self._over = True
        self._wake()
        self.join(10)

    def _wake(self) -> None:
        os.write(self._waker[1], b"x")

    # -- the thread ----------------------------------------------------------------------------------------
    def run(self) -> None:
        then = time.monotonic()
        while not self._over:
            poll = select.poll()
            poll.register(self._waker[0], select.POLLIN)
            with self._lock:
                now = time.monotonic()
                for road, rate in self._rate.items():
                    self._allowed[road] = min(rate * 0.1, self._allowed.get(road, 0.0) + rate * (now - then))
                then, slowly = now, bool(self._rate)
                for fd, (road, _) in self._listeners.items():
                    if road not in self._cut:
                        poll.register(fd, select.POLLIN)
                ends = self._watch(poll)
            ready = poll.poll(SLICE * 1000 if slowly else 1000)
            with self._lock:
                for fd, event in ready:
                    if fd == self._waker[0]:
                        os.read(fd, 4096)
                    elif fd in self._listeners:
                        self._accept(*self._listeners[fd])
                    elif fd in ends:
                        self._move(*ends[fd], event)
                self._pairs = [pair for pair in self._pairs if not self._done(pair)]
        for pair in self._pairs:
            _close(pair)
        for _, listener in self._listeners.values():
            listener.close()

    def _watch(self, poll: select.poll) -> dict[int, tuple[Pair, int]]:
        ends = dict[int, tuple[Pair, int]]()
        for pair in self._pairs:
            if pair.road in self._cut or pair.road in self._rate and self._allowed.get(pair.road, 0.0) < 1.0:
                continue
            for number, end in enumerate(pair.ends):
                what = 0
                if not pair.over[number] and len(pair.waiting[number]) < MOST:
                    what |= select.POLLIN
                other = 1 - number
                if pair.waiting[other] or pair.over[other] and not pair.passed_on[other]:
                    what |= select.POLLOUT
                if what:
                    poll.register(end, what)
                    ends[end.fileno()] = pair, number
        return ends

    def _accept(self, road: tuple[str, str], listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            head, _ = listener.accept()
            node = socket.socket(socket.AF_UNIX)
            try:
                node.connect(str(self._there(road[1])))
            except OSError:  # a machine that is down, or where nobody listens yet
                node.close()
                head.close()
                return
            pair = Pair(road, head)
            pair.ends.append(node)
            for end in pair.ends:
                end.setblocking(False)
            self._pairs.append(pair)

    def _move(self, pair: Pair, number: int, event: int) -> None:
        if pair not in self._pairs or pair.road in self._cut:
            return
        end, other = pair.ends[number], 1 - number
        try:
            if event & select.POLLOUT and pair.waiting[other]:
                most = len(pair.waiting[other])
                if pair.road in self._rate:
                    most = min(most, int(self._allowed.get(pair.road, 0.0)))
                sent = end.send(memoryview(bytes(pair.waiting[other][:most]))) if most else 0
                del pair.waiting[other][:sent]
                if pair.road in self._rate:
                    self._allowed[pair.road] = self._allowed.get(pair.road, 0.0) - sent
            if pair.over[other] and not pair.waiting[other] and not pair.passed_on[other]:
                pair.passed_on[other] = True
                end.shutdown(socket.SHUT_WR)
            if event & (select.POLLIN | select.POLLHUP) and not pair.over[number]:
                if len(pair.waiting[number]) < MOST:
                    data = end.recv(1 << 16)
                    pair.waiting[number] += data
                    pair.over[number] = not data
            elif event & (select.POLLHUP | select.POLLERR):
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:  # that end is gone: the other one hears of it
            pair.over[number] = True
            pair.waiting[other].clear()
            pair.over[other] = pair.passed_on[other] = True

    def _done(self, pair: Pair) -> bool:
        if all(pair.over) and not any(pair.waiting):
            _close(pair)
            return True
        return False


def _close(pair: Pair) -> None:
    for end in pair.ends:
        with contextlib.suppress(OSError):
            end.close()
