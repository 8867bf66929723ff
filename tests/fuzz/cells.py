"""The table of verb and trait: what each way to bring files does with links, mounts, ignored, kept, changing, emptied
sources, and with a kill.

Each function of TRAITS draws its files by a seed, and holds for all of DELIVERIES; python -m tests.fuzz.cells SECONDS
[SEED] kills transfers for so long, and prints how many. A delivery goes from BASE/source to BASE/dest, in a process of
its own, whose HOME is BASE/home: python -m tests.fuzz.cells VERB BASE.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fleet.errors import FleetError
from fleet.model import Host
from tests.fuzz.sync_model import ODD, PLAIN
from tests.fuzz.world import see
from tests.in_process import fleet_here

LARGE = 5 << 20  # of several blocks


def deliver(verb: str, base: Path) -> str | None:
    """Returns what was wrong, None where nothing was."""
    source, dest = str(base / "source"), str(base / "dest")
    here = fleet_here(
        *(Host(name, "127.0.0.1", workdir=str(base / name)) for name in ("n1", "n2")[: 1 + (verb == "from")])
    )
    try:
        report = {
            "code": lambda: here.sync(source, to=dest),
            "data": lambda: here.sync_data(f"{source}:{dest}"),
            "from": lambda: here.sync_data(f"{source}:{dest}", from_host="n1"),
            "get": lambda: here.get(source, to=Path(dest)),
        }[verb]()
    except FleetError as error:
        return f"{error.message} {error.hint}"
    errors = [result.error for result in report.results if result.error is not None]
    return f"{errors[0].message} {errors[0].hint}" if errors else None


class Ground:
    """BASE of one case, and the way that its verb delivers. place: where the files come to."""

    def __init__(self, verb: str, base: Path, seed: int) -> None:
        self.verb, self.base, self.pick = verb, base, random.Random(seed)
        self.source, self.dest = base / "source", base / "dest"
        self.place = self.dest / "source" if verb == "get" else self.dest
        for folder in (self.source / "set", base / "home", base / "n1", base / "n2"):
            folder.mkdir(parents=True)
        self.names = [*self.pick.sample(ODD, 3), *self.pick.sample(PLAIN, 3)]
        for name in self.names:
            self.write(name)
            self.write(f"set/{name}")

    def write(self, path: str, size: int | None = None) -> None:
        size = self.pick.choice((0, 9, 70_000)) if size is None else size
        (self.source / path).write_bytes(self.pick.randbytes(size))

    def start(self, within: str = "exec") -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "tests.fuzz.cells", self.verb, str(self.base)]
        return subprocess.Popen(
            ["sh", "-c", f'{within} "$@"', "sh", *line],
            env={**os.environ, "HOME": str(self.base / "home")},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def deliver(self, within: str = "exec") -> str:
        """Returns what was wrong, "" where nothing was."""
        with self.start(within) as process:
            out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out.decode()
        return out.decode("utf-8", "replace").strip()

    def came(self) -> dict[str, tuple[str, bytes]]:
        return self.seen(self.place)

    def seen(self, folder: Path) -> dict[str, tuple[str, bytes]]:
        return {path: entry.version for path, entry in see(folder, (".git", ".fleet-source")).items()}

    def staged(self) -> int:
        """Returns the size of the largest file that has come and is not in its place."""
        found = [0]
        for path in [*self.base.glob(".dest.fleet-*/stage/**/large"), *self.dest.glob(".fleet-get/*/*")]:
            with suppress(FileNotFoundError):
                found.append(path.stat().st_size)
        return max(found)

    def all_came(self, within: str = "exec") -> None:
        assert self.deliver(within) == ""
        assert self.came() == self.seen(self.source)


def link(ground: Ground) -> None:
    """Links arrive as links, in code and data alike, wherever they lead."""
    for number, target in enumerate((ground.names[0], "set", "..", "nowhere", "/nowhere", f"set/{ground.names[1]}")):
        (ground.source / f"link{number}").symlink_to(target)
    ground.all_came()
    (ground.source / "link0").unlink()
    (ground.source / "link0").symlink_to("set")
    ground.all_came()


def mount(ground: Ground) -> None:
    """A file system that is mounted inside the destination is no obstacle: what goes there is staged there."""
    ground.write("set/large", LARGE)
    (ground.place / "set").mkdir(parents=True)
    copy = Path(f"{ground.place}.copy")
    mounts = f'mount -t tmpfs none {ground.place}/set && "$@" && cp -a {ground.place}/set {copy}'
    assert ground.deliver(f"exec unshare -m sh -c '{mounts}' sh") == ""
    assert ground.seen(copy) == ground.seen(ground.source / "set")


def ignored(ground: Ground) -> None:
    """Patterns are about code. What is named as data, or fetched, comes as it is."""
    (ground.source / ".gitignore").write_text("*.bin\n/out9/\n")
    (ground.source / "out9").mkdir()
    for path in ("out9/log", "w.bin", "set/w.bin"):
        ground.write(path)
    assert ground.deliver() == ""
    out = {"out9", "out9/log", "w.bin", "set/w.bin"} if ground.verb == "code" else set()
    assert ground.came() == {path: each for path, each in ground.seen(ground.source).items() if path not in out}


def kept_time(ground: Ground) -> None:
    """What replaces a file and is older than it (tar, cp -p, mv) comes like any other."""
    ground.all_came()
    for path in (ground.names[0], f"set/{ground.names[1]}", "set/new"):
        ground.write("another")
        old = ground.pick.randrange(1, 10**9)
        os.utime(ground.source / "another", (old, old))
        os.replace(ground.source / "another", ground.source / path)
    ground.all_came()


def changing(ground: Ground) -> None:
    """A file that is rewritten all the time comes whole, or not at all: never as two versions in one."""
    over, size = threading.Event(), ground.pick.choice((9, 70_000, LARGE))

    def rewrite() -> None:
        version = 0
        while not over.is_set():
            version = version % 255 + 1
            (ground.source / "busy").write_bytes(bytes([version]) * size)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        wrong = ground.deliver()
    finally:
        over.set()
        writer.join()
    busy = ground.place / "busy"
    assert not busy.exists() or len(set(busy.read_bytes())) <= 1
    assert wrong == "" or "busy" in wrong
    ground.all_came()


def emptied(ground: Ground) -> None:
    """Nothing is deleted because the source is empty: code asks first."""
    ground.all_came()
    before = ground.came()
    for path in ground.source.iterdir():
        if not path.name.startswith(".fleet"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    wrong = ground.deliver()
    assert ground.came() == before
    assert "--max-delete" in wrong or ground.verb != "code"


def killed(ground: Ground) -> None:
    """What is in its place is whole, whenever the head is killed, and the next delivery makes it good."""
    ground.write("set/large", LARGE)
    with ground.start() as process:
        time.sleep(ground.pick.uniform(0.2, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
    whole = ground.seen(ground.source)
    assert all(entry == whole.get(path) for path, entry in ground.came().items())
    ground.all_came()
    assert not list(ground.dest.glob(".fleet-get*"))


def killed_twice(ground: Ground) -> None:
    """What has come of a large file stays staged, whichever kill follows, and the last delivery makes it good."""
    ground.write("set/large", 24 * LARGE)
    most = 0
    for _ in range(3):
        with ground.start() as process:
            until = time.monotonic() + ground.pick.uniform(1.0, 2.0)
            while process.poll() is None and time.monotonic() < until and ground.staged() <= most + LARGE:
                time.sleep(0.002)
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.2)  # what is on its way is still being written
        staged = ground.staged()
        if (ground.place / "set/large").exists():  # it may get there until now
            break
        assert staged > most - LARGE  # a block that was not whole comes again
        most = max(most, staged)
    ground.all_came()


TRAITS: dict[str, Callable[[Ground], None]] = {
    "link": link,
    "mount": mount,
    "ignored": ignored,
    "kept time": kept_time,
    "changing": changing,
    "emptied": emptied,
    "killed": killed,
    "killed twice": killed_twice,
}
DELIVERIES = ("code", "data", "from", "get")


def kill(seconds: float, seed: int) -> int:
    """Kills one transfer after another. Returns how many did not come right."""
    until, count, failed = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        verb = DELIVERIES[count % len(DELIVERIES)]
        with tempfile.TemporaryDirectory() as folder:
            try:
                killed(Ground(verb, Path(folder), seed + count))
            except AssertionError as error:
                failed += 1
                print(f"{verb}, seed {seed + count}: {error}", flush=True)
        count += 1
    print(f"{count} transfers killed from seed {seed}, {failed} failed")
    return failed


if __name__ == "__main__":
    if sys.argv[1] in DELIVERIES:
        print(deliver(sys.argv[1], Path(sys.argv[2])) or "")
    else:
        sys.exit(kill(float(sys.argv[1]), int([*sys.argv, "1"][2])))
