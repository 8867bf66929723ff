"""A hostile neighbour (another_uid.py) in each place that fleet may have to share: what it puts in the way before each
change that fleet makes, on head and node, changes no file elsewhere, is in nothing that fleet calls verified, and shows
nobody what is its owner's alone. fleet succeeds, or refuses in words. It needs root, for the other uid."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from fleet.errors import FleetError
from fleet.model import Host, Inventory, Report
from fleet.ops import broadcast, get, sync
from fleet.ops.build import _own_folder
from fleet.ops.cache import fresh, memo, recall, remember, turn
from fleet.ops.init import InitPlan, try_to_write, write
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import local_runs, prune
from fleet.protocol.state import SOURCE_MARK
from fleet.requests.runs import Get
from fleet.requests.sync import Sync, SyncData
from fleet.runtime import Runtime
from fleet.transport.program import BOOT
from tests.events import happened
from tests.fuzz import neighbour_hook
from tests.fuzz.transport import ForkedTransport, Forker

EVIL = b"EVIL: of the neighbour\n"
PRIVATE = b"PRIVATE: for its owner alone\n"
UID = 12345
# whose the shared folder is, and its mode. On a node, where fleet holds folders open, any: what the neighbour may
# rename there is not judged, what it leads to is. Root trusts the owner of a folder of the head that it works in.
STICKY, OPEN, HIS = (0, 0o1777), (0, 0o777), (UID, 0o755)
NODE, HEAD = [STICKY] * 5 + [OPEN, HIS, (UID, 0o1777)], [STICKY] * 5 + [OPEN]
HOOK = Path(neighbour_hook.__file__).read_text()


class Fault(Exception):
    """What must not be."""


class Another:
    """The neighbour's process."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "neighbour")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(self.address)
        server.listen(64)
        script = Path(__file__).with_name("another_uid.py")
        self._process = subprocess.Popen([sys.executable, "-I", "-S", str(script)], stdin=server.fileno())
        server.close()

    def tell(self, **what: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(60)
            one.connect(self.address)
            one.send(json.dumps(what).encode())
            answer: dict[str, Any] = json.loads(one.recv(1 << 18) or b"{}")
            return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.tell(end=True)
        self._process.wait(20)


class Case:
    """One verb, some times, in one place."""

    def __init__(
        self, base: Path, seed: int, another: Another, hook: neighbour_hook.Hook, forker: Forker, only: str
    ) -> None:
        self.rng, self.base, self.hook, self.another = random.Random(seed), base, hook, another
        self.shared, self.outside, self.source = base / "shared", base / "outside", base / "project"
        for name in ("home", "nodehome"):
            (base / name).mkdir(0o700)
        (base / "nodehome/out").mkdir()
        self.outside.mkdir()
        (self.outside / "folder").mkdir()
        (self.outside / "conf").write_text("CANARY\n")
        (self.outside / "secret").write_bytes(PRIVATE)
        (self.outside / "secret").chmod(0o600)
        (self.outside / "folder/kept").write_text("CANARY, too\n")
        for place in (self.source, base / "nodehome/out"):
            self.fill(place)
        verbs = {
            "sync": NODE,
            "data": NODE,
            "get": HEAD,
            "runs": [STICKY],
            "builds": [STICKY],
            "cache": [STICKY],
            "inventory": [STICKY],
        }
        self.kind = self.rng.choice([kind for kind in verbs if kind in (only.split(",") if only else verbs)])
        self.owner, self.mode = self.rng.choice(verbs[self.kind])
        self.shared.mkdir()
        (self.shared / "project").mkdir()
        os.chown(self.shared, self.owner, self.owner)
        self.shared.chmod(self.mode)
        self.before = self.tree(self.outside)
        boot = f"{HOOK}\ninstall({another.address!r}, {str(self.shared)!r})\ndel install\n{BOOT}"
        self.runtime = Runtime(ForkedTransport(forker, {"n1": base / "nodehome"}, {"n1": {"boot": boot}}))
        self.hosts = Inventory((Host("n1", "127.0.0.1"),))
        self.outcomes: list[str] = []

    def fill(self, place: Path) -> None:
        (place / "sub/deep").mkdir(parents=True, exist_ok=True)
        (place / "a.py").write_text(f"a = {self.rng.random()}\n")
        (place / "sub/blob").write_bytes(self.rng.randbytes(self.rng.choice([0, 100, 300_000])))
        (place / "sub/deep/private").write_bytes(PRIVATE)
        (place / "sub/deep/private").chmod(0o600)
        for name in ("link", "sub/some"):
            (place / name).unlink(missing_ok=True)
        if self.rng.random() < 0.5:
            (place / "link").symlink_to("a.py")
            (place / "sub/some").write_text("some\n")

    @staticmethod
    def tree(root: Path) -> dict[str, tuple[Any, ...]]:
        found = {}
        for folder, folders, names in os.walk(root):
            for each in [folder, *(os.path.join(folder, n) for n in folders + names)]:
                info = os.lstat(each)
                content = os.readlink(each) if stat.S_ISLNK(info.st_mode) else ""
                if stat.S_ISREG(info.st_mode):
                    content = Path(each).read_bytes().hex()
                changed = 0 if stat.S_ISLNK(info.st_mode) else info.st_mtime_ns
                found[os.path.relpath(each, root)] = (info.st_mode, info.st_uid, info.st_gid, changed, content)
        return found

    def dest(self) -> Path:
        return self.shared / self.rng.choice(["work", "work", "w/x", "w/x/y"])

    def run(self) -> None:
        """Fault."""
        self.another.tell(
            seed=self.rng.randrange(1 << 30),
            rate=self.rng.choice([0.02, 0.1, 0.3, 0.6]),
            outside=str(self.outside),
            base=str(self.shared),
            names=[str(self.shared / name) for name in ("work", ".work.fleet-sync", ".fleet-get", "runs", "w", "w/x")],
        )
        self.hook.base, self.hook.on = str(self.shared), True
        try:
            with mock.patch.dict(os.environ, {"HOME": str(self.base / "home")}):
                getattr(self, self.kind)()
        finally:
            self.hook.on = False
        report = self.another.tell(report=True)
        self.acts = report["acts"]
        if report["read"]:
            raise Fault(f"the neighbour read {report['read'][:3]}; {report['did'][-20:]}")
        if self.tree(self.outside) != self.before:
            after = self.tree(self.outside)
            changed = {name for name in {*after, *self.before} if after.get(name) != self.before.get(name)}
            raise Fault(f"changed outside: {sorted(changed)}; {report['did'][-20:]}")

    def attempt(self, what: Callable[[], Report | None]) -> bool:
        """Did it succeed?"""
        began = time.monotonic()
        try:
            report = what()
            error = next((result.error for result in report.results if not result.ok), None) if report else None
        except FleetError as refused:
            error = refused
        except OSError as crash:
            raise Fault(f"{type(crash).__name__}: {crash}") from crash
        if time.monotonic() - began > 60:
            raise Fault(f"took {time.monotonic() - began:.0f} s: {error}")
        self.outcomes.append(str(error) if error else "ok")
        if error and (error.exit_code == 125 or "Traceback" in str(error) or not error.message.isprintable()):
            raise Fault(f"refused as {error.kind}: {error}")
        return not error

    def same(self, there: Path, source: Path) -> None:
        """What was verified is all of the source, of fleet's user, and no more than that."""
        if self.owner and there.parent == self.shared:
            raise Fault(f"{there} is taken, in a folder of uid {self.owner}")
        way = [self.shared / part for part in there.relative_to(self.shared).parents if part.name]
        if self.kind == "get" and any(
            not os.path.lexists(part) or part.lstat().st_uid for part in way
        ):  # its user chose
            return
        if not self.mode & stat.S_ISVTX or self.owner:
            return
        unsent = (".", SOURCE_MARK)
        wanted = {name: (e[0], 0, e[4]) for name, e in self.tree(source).items() if name not in unsent}
        found = {name: (e[0], e[1], e[4]) for name, e in self.tree(there).items() if name != "."}
        for name, (mode, uid, content) in wanted.items():
            now = found.get(name)
            if now is None or stat.S_IFMT(now[0]) != stat.S_IFMT(mode) or now[1] != uid or now[2] != content:
                raise Fault(f"{there / name} is verified and is {now and (oct(now[0]), now[1], now[2][:60])}")
        for name, (mode, _uid, content) in found.items():
            if content == EVIL.hex() or stat.S_ISLNK(mode) and str(self.outside) in content:
                raise Fault(f"{there / name} is the neighbour's, in what is verified")
        info = os.lstat(there)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != 0:
            raise Fault(f"{there} is verified, of uid {info.st_uid}, {stat.filemode(info.st_mode)}")

    def sync(self) -> None:
        dest = self.dest()
        for _ in range(self.rng.choice([1, 2, 3])):
            plan = sync.plan(self.hosts, Sync(self.source, str(dest), force=self.rng.random() < 0.5))
            if self.attempt(partial(sync.run, plan, self.runtime)):
                self.same(dest, self.source)
            self.fill(self.source)

    def get(self) -> None:
        to = self.rng.choice([self.shared, self.dest()])
        for _ in range(self.rng.choice([1, 2, 3])):
            plan = get.plan(self.hosts, Get(str(self.base / "nodehome/out"), to=to))
            if self.attempt(partial(get.run, plan, self.runtime)):
                self.same(to / "out", self.base / "nodehome/out")
            self.fill(self.base / "nodehome/out")

    def data(self) -> None:
        dest = self.dest()
        for _ in range(self.rng.choice([1, 2])):
            plan = broadcast.plan(self.hosts, SyncData(data=[f"{self.source}:{dest}"]))
            if self.attempt(partial(broadcast.run, plan, self.runtime)):
                self.same(dest, self.source)
            self.fill(self.source)

    def runs(self) -> None:
        """What is the same in all verbs that have to do with runs: their folders."""

        def one() -> None:
            folder = RunFolder.create(
                runs, f"run-20261125-1200{self.rng.randrange(60):02}-{self.rng.randrange(1 << 16):04x}"
            )
            folder.be_latest()
            folder.event(happened("began", secret=PRIVATE.decode()))
            folder.write_json("run.json", {"secret": PRIVATE.decode()})
            (folder.path / "n1").mkdir(0o700, exist_ok=True)
            for found in local_runs(runs):
                if self.rng.random() < 0.3:
                    prune(found)

        runs = self.rng.choice([self.shared, self.shared / "project"]) / "runs"
        for _ in range(self.rng.choice([1, 2, 3])):
            self.attempt(one)

    def builds(self) -> None:
        def one() -> None:
            folder = _own_folder(self.shared / "builds") / "b1"
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
            if os.lstat(folder).st_uid or os.lstat(folder.parent).st_uid:
                raise Fault(f"{folder} is not fleet's")

        self.attempt(one)

    def inventory(self) -> None:
        """What `fleet init` writes, new or again."""
        path = self.shared / self.rng.choice(["fleet.yaml", "project/fleet.yaml"])
        old = None

        def one() -> None:
            plan = InitPlan(self.hosts, path, old, frozenset(), (), "/", "python3", 1.0, False)
            try_to_write(plan)
            write(plan, f"hosts: [n1]  # {self.rng.random()}\n")

        for _ in range(self.rng.choice([1, 2, 3])):
            if self.attempt(one):
                old = path.read_text()
                if path.lstat().st_uid or not old.startswith("hosts: [n1]"):
                    raise Fault(f"{path} is the neighbour's")

    def cache(self) -> None:
        cache = self.shared / "fleet"

        def one() -> None:
            with turn("name", "another", self.runtime, within=1.0), fresh(cache / "wheels/new") as work:
                (work / "wheel").write_text("a wheel")
                note = memo(self.source / "a.py")
                remember(note, {"secret": PRIVATE.decode()})
                if recall(note) != {"secret": PRIVATE.decode()} or (work / "wheel").read_text() != "a wheel":
                    raise Fault("what is kept is the neighbour's")

        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.shared)}):
            for _ in range(2):
                self.attempt(one)


@contextlib.contextmanager
def street() -> Iterator[tuple[Path, Another, neighbour_hook.Hook]]:
    """A folder that everyone can reach, the neighbour, and its moment in this process."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-neighbour."))
    folder.chmod(0o711)
    another = Another(folder)
    hook = neighbour_hook.install(another.address, str(folder))  # for good: an audit hook stays
    hook.on = False
    try:
        yield folder, another, hook
    finally:
        hook.on = False
        another.close()
        shutil.rmtree(folder, ignore_errors=True)


def run(seconds: float, seed: int, say: Callable[[str], object] = print, only: str = "") -> None:
    """AssertionError with the seed of the case."""
    if os.geteuid():
        raise AssertionError("the neighbour needs another uid: root")
    counts: collections.Counter[str] = collections.Counter()
    end, number = time.monotonic() + seconds, seed
    with street() as (folder, another, hook):
        forker = Forker()
        try:
            while time.monotonic() < end:
                base = folder / str(number)
                base.mkdir()
                case = Case(base, number, another, hook, forker, only)
                try:
                    case.run()
                except Exception as error:
                    what = f"{case.kind} in {case.shared}, {oct(case.mode)} of uid {case.owner}"
                    raise AssertionError(f"seed {number}: {what}: {error}") from error
                for outcome in case.outcomes:
                    counts[f"{case.kind} {'ok' if outcome == 'ok' else 'refused'}"] += 1
                counts[f"{case.kind} acts"] += case.acts
                shutil.rmtree(base, ignore_errors=True)
                number += 1
        finally:
            forker.close()
    say(f"neighbour: seeds {seed} to {number - 1}: {dict(sorted(counts.items()))}")
