"""What a file may be instead of one: a link, a pipe, a device, huge, deep, another user's."""

from __future__ import annotations

import os
import random
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ESCAPES = "\x1b]0;owned\x07\x1b[2J"


class Ground(NamedTuple):
    """outside: what no link should lead to. others: what is to be another user's, by and by."""

    rng: random.Random
    outside: Path
    others: list[Path]


def pipe(ground: Ground, path: Path, text: str) -> None:
    os.mkfifo(path)


def deep(ground: Ground, path: Path, text: str) -> None:
    begin = ground.rng.choice(["[", '{"a":', "- ", "(", "a:\n "])
    path.write_text(begin * ground.rng.choice([5_000, 200_000]) + "\n")


def endless(ground: Ground, path: Path, text: str) -> None:
    path.symlink_to(ground.rng.choice(["/dev/zero", "/dev/urandom", "/dev/tty"]))


def device(ground: Ground, path: Path, text: str) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    path.chmod(0o666)


def huge(ground: Ground, path: Path, text: str) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


def elsewhere(ground: Ground, path: Path, text: str) -> None:
    path.symlink_to(ground.outside / ground.rng.choice(["secret", "conf", "new", "folder", "folder/new"]))


def folder(ground: Ground, path: Path, text: str) -> None:
    path.mkdir()
    (path / "in it").write_text("x")


def anothers(ground: Ground, path: Path, text: str) -> None:
    path.write_text(text)
    ground.others.append(path)


def anothers_link(ground: Ground, path: Path, text: str) -> None:
    elsewhere(ground, path, text)
    ground.others.append(path)


def bytes_(ground: Ground, path: Path, text: str) -> None:
    path.write_bytes(ground.rng.choice([b"\0" * 100, ground.rng.randbytes(300), b"\xff\xfe" + b"a\0" * 50, b""]))


def loop(ground: Ground, path: Path, text: str) -> None:
    path.symlink_to(path.name)


def a_socket(ground: Ground, path: Path, text: str) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # an address has a hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def long(ground: Ground, path: Path, text: str) -> None:
    path.write_text(ground.rng.choice(["a", "1", "-", '"']) * 3_000_000)


def typed(ground: Ground, path: Path, text: str) -> None:
    values = ["[]", "null", "1e999", "NaN", "9" * 5000, '{"time": "x", "event": 5}', '"\\ud800"', "[[[]]]", "true"]
    path.write_text(ground.rng.choice(values) + "\n")


def escapes(ground: Ground, path: Path, text: str) -> None:
    path.write_text(ESCAPES * 10 + "\n")


def shut(ground: Ground, path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0)


Kind = Callable[[Ground, Path, str], None]
FILES: list[Kind] = [pipe, deep, endless, device, huge, elsewhere, folder, anothers, anothers_link, bytes_, loop]
KINDS: list[Kind] = [*FILES, a_socket, long, typed, escapes, shut]
