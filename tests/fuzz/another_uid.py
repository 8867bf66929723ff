"""The neighbour: a process with another uid. It is asked, over a socket, before each change that fleet is about to make
to a file, reads what it may, and now and then puts something of its own in the way. It is started as root."""

from __future__ import annotations

import errno
import json
import os
import random
import select
import socket
import sys
from typing import Any

UID = 12345
EVIL = b"EVIL: of the neighbour\n"
PRIVATE = b"PRIVATE: for its owner alone\n"


class Neighbour:
    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.rate, self.outside, self.base = 0.0, "", ""
        self.seen: list[str] = []
        self.did: list[str] = []
        self.read: list[str] = []

    def begin(self, told: dict[str, Any]) -> None:
        self.rng = random.Random(told["seed"])
        self.rate, self.outside, self.base = told["rate"], told["outside"], told["base"]
        self.seen, self.did, self.read = list(told["names"]), [], []

    def look(self, path: str) -> None:
        """Is there anything to be read that is not for everyone?"""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            if PRIVATE in os.read(fd, 1 << 16):
                self.read.append(path)
        except OSError:
            for name in os.listdir(fd)[:50]:
                if os.path.join(path, name) not in self.seen:
                    self.seen.append(os.path.join(path, name))
        finally:
            os.close(fd)

    def asked(self, paths: list[str]) -> None:
        for path in paths:
            if path not in self.seen and path.startswith(self.base):
                self.seen.append(path)
        for path in {*paths, self.rng.choice(self.seen)}:
            self.look(path)
        if self.rng.random() < self.rate:
            for _ in range(self.rng.choice([1, 1, 2, 5])):
                near = self.rng.random()
                path = self.rng.choice(paths) if near < 0.6 and paths else self.rng.choice(self.seen)
                if near > 0.9:
                    path = os.path.dirname(path)
                if path.startswith(self.base + "/"):
                    self.act(path)

    def act(self, path: str) -> None:
        how = self.rng.choice(["link", "link", "folder", "file", "fifo", "hard", "away", "open", "swap", "fill"])
        try:
            getattr(self, how)(path)
            self.did.append(f"{how} {path}")
        except OSError as error:
            if error.errno not in (
                errno.EACCES,
                errno.EPERM,
                errno.ENOENT,
                errno.EEXIST,
                errno.ENOTEMPTY,
                errno.ENOTDIR,
            ):
                self.did.append(f"{how} {path}: {error}")

    def away(self, path: str) -> None:
        """Somewhere else, where it cannot be removed."""
        if not os.path.lexists(path):
            return
        try:
            os.unlink(path)
        except OSError:
            os.rename(path, f"{path}.away{self.rng.randrange(1000)}")

    def link(self, path: str) -> None:
        to = self.rng.choice(["", "/conf", "/secret", "/folder", "/new", "/folder/new"])
        self.away(path)
        os.symlink(self.outside + to, path)

    def folder(self, path: str) -> None:
        self.away(path)
        os.mkdir(path)
        os.chmod(path, self.rng.choice([0o777, 0o755, 0o700, 0o1777]))

    def file(self, path: str) -> None:
        self.away(path)
        with open(path, "xb") as file:
            file.write(EVIL)
        os.chmod(path, self.rng.choice([0o666, 0o644, 0o600, 0o4777]))

    def fifo(self, path: str) -> None:
        self.away(path)
        os.mkfifo(path)
        os.chmod(path, 0o666)

    def hard(self, path: str) -> None:
        self.away(path)
        os.link(self.outside + "/conf", path)

    def open(self, path: str) -> None:
        os.chmod(path, 0o777)

    def swap(self, path: str) -> None:
        other = self.rng.choice(self.seen)
        os.rename(other, f"{path}.swap")
        self.away(path)
        os.rename(f"{path}.swap", path)

    def fill(self, path: str) -> None:
        """What is written to although it is not its own."""
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags & ~os.O_CREAT | os.O_NONBLOCK)) as file:
            file.write(EVIL)


def main() -> None:
    server = socket.socket(fileno=0)
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)
    os.umask(0)
    neighbour = Neighbour()
    connections = {server.fileno(): server}
    while True:
        for fd in select.select([*connections], [], [])[0]:
            if fd == server.fileno():
                new, _ = server.accept()
                connections[new.fileno()] = new
                continue
            try:
                data = connections[fd].recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                connections.pop(fd).close()
                continue
            told = json.loads(data)
            answer: dict[str, Any] = {}
            if "end" in told:
                sys.exit(0)
            elif "seed" in told:
                neighbour.begin(told)
            elif "paths" in told:
                neighbour.asked(told["paths"])
            else:
                answer = {"did": neighbour.did[-200:], "acts": len(neighbour.did), "read": neighbour.read}
            try:
                connections[fd].send(json.dumps(answer).encode()[: 1 << 18])
            except OSError:
                connections.pop(fd).close()


main()
