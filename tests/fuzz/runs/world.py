"""What a case is played in: nodes and heads out of namespaces, the links between them, disks of their own, and what is
typed on heads. All of it is on one tmpfs that only this process and its machines see."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet.transport.program import BOOT
from tests.fuzz.runs.link import Link
from tests.fuzz.runs.transport import LINKS

HERE, TREE = Path(__file__).parent, Path(__file__).parents[3]
MACHINE, RANKS = HERE / "machine.py", HERE / "ranks.py"
HEADS = ("a", "b", "c")
NEWNS, NEWNET, REC, PRIVATE = 0x20000, 0x40000000, 0x4000, 0x40000
DISK = 68 << 20  # preflight wants 64 MiB
POINT = "[fleet.transports]\nfuzz = tests.fuzz.runs.transport:LinkTransport\n"
LIBC = ctypes.CDLL(None, use_errno=True)
ASK_SECONDS = 60.0
FILES = ("stat", "cmdline", "environ")


class Stuck(Exception):
    """What the fuzzer itself relies on did not come to pass."""


def until(condition: Callable[[], Any], seconds: float, pause: float = 0.02) -> Any:
    """What it comes to, once that is true, or after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def head_modules() -> list[str]:
    """What a fleet command may import: all of it comes before the fork."""
    root = TREE / "fleet"
    left_out = {"lab", "tasks", "playbook", "node", "shipped", "ssh", "openssh"}
    found = [path.relative_to(root).with_suffix("").parts for path in root.rglob("*.py")]
    names = {".".join(("fleet", *parts)).removesuffix(".__init__") for parts in found if not left_out & set(parts)}
    hollow = {"fleet.__main__", "fleet.transport.rsh_client"}
    return ["tests.fuzz.runs.transport", *sorted(names - hollow), "tests.fuzz.runs.warm"]


class Forges:
    """Two pythons that machines are forked from, shared by all cases: of nodes, which knows nothing of fleet, and of
    heads, which has imported it. site: a folder with the entry point of the transport."""

    def __init__(self, site: Path) -> None:
        (site / "fleet_fuzz-1.0.dist-info").mkdir(parents=True)
        (site / "fleet_fuzz-1.0.dist-info/METADATA").write_text(
            "Metadata-Version: 2.1\nName: fleet-fuzz\nVersion: 1.0\n"
        )
        (site / "fleet_fuzz-1.0.dist-info/entry_points.txt").write_text(POINT)
        base = str(getattr(sys, "_base_executable", None) or sys.executable)
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        shim = site / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "clock.c")], check=True)
        env["LD_PRELOAD"] = str(shim)
        path = os.pathsep.join([str(TREE), str(site), *[each for each in sys.path if each and each != str(TREE)]])
        self.env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", "TERM": "xterm"}
        self._sockets = {
            "node": _forge([base, "-I", "-S", str(MACHINE)], env, site / "node.lock"),
            "head": _forge([sys.executable, str(MACHINE), *head_modules()], {**env, **self.env}, site / "head.lock"),
        }

    def make(self, kind: str, asked: dict[str, Any], fds: list[int]) -> None:
        """Several processes ask over the same socket: one at a time, and each reads but its own answer."""
        sock, lock = self._sockets[kind]
        with open(lock, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            socket.send_fds(sock, [json.dumps(asked).encode()], fds)
            sock.recv(1 << 16)

    def close(self) -> None:
        for sock, _ in self._sockets.values():
            sock.close()


def _forge(argv: list[str], env: dict[str, str], lock: Path) -> tuple[socket.socket, Path]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(argv, stdin=theirs.fileno(), env=env, start_new_session=True)
    theirs.close()
    lock.touch()
    return ours, lock


class Machine:
    """A node or a head. place: its folder; home: a disk of its own below it."""

    def __init__(self, world: World, name: str, kind: str) -> None:
        self.world, self.name, self.kind = world, name, kind
        self.place = world.place / name
        self.home = self.place / "home"
        self.home.mkdir(parents=True)
        _mount("tmpfs", self.home, f"size={DISK}")
        self.listens = self.place / "sock"
        self.said, self.clock = self.place / "said", self.place / "clock"
        self.set_clock(0.0)
        self.up = self.frozen = False
        self.ended = dict[int, int]()
        self._answers = list[dict[str, Any]]()
        self._changed, self._asking = threading.Condition(), threading.Lock()
        self.control: socket.socket | None = None

    def boot(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        boot = self.place / "boot_id"
        boot.write_text(f"{uuid.uuid4()}\n")
        env: dict[str, str] = {}
        if self.kind == "head":
            env = {
                **self.world.forges.env,
                LINKS: str(self.world.place / "links" / self.name),
                "TMPDIR": str(self.home),
            }
        asked = {
            "name": self.name,
            "boot": str(boot),
            "clock": str(self.clock),
            "listen": str(self.listens) if self.kind == "node" else None,
            "home": str(self.home),
            "said": str(self.said),
            "bootstrap": BOOT,
            "env": env,
        }
        self.world.forges.make(self.kind, asked, [*self.world.spaces, theirs.fileno()])
        theirs.close()
        self.control, self.ended, self._answers = ours, {}, []
        up = threading.Event()
        threading.Thread(target=self._listen, args=(ours, up), daemon=True).start()
        if not up.wait(ASK_SECONDS):
            raise Stuck(f"{self.name} does not start")
        self.up = True

    def _listen(self, control: socket.socket, up: threading.Event) -> None:
        while True:
            try:
                data = control.recv(1 << 20)
            except OSError:
                data = b""
            told = json.loads(data) if data else {"down": True}
            with self._changed:
                if "ended" in told:
                    self.ended[told["ended"]] = told["status"]
                elif "answer" in told:
                    self._answers.append(told)
                elif "down" in told and control is self.control:
                    self.up = False
                self._changed.notify_all()
            if "up" in told:
                up.set()
            if not data:
                return

    def ask(self, op: str, fds: list[int] | None = None, **more: Any) -> Any:
        """None from one that is down."""
        with self._asking:
            control = self.control
            if not self.up or control is None:
                return None
            try:
                socket.send_fds(control, [json.dumps({"op": op, **more}).encode()], fds or [])
            except OSError:
                return None
            with self._changed:
                if not self._changed.wait_for(lambda: self._answers or not self.up, ASK_SECONDS):
                    raise Stuck(f"{self.name} does not answer to {op}")
                return self._answers.pop()["answer"] if self._answers else None

    def power_off(self) -> None:
        """All its processes at once."""
        if self.control is not None:
            self.up = False
            with suppress(OSError):
                self.control.shutdown(socket.SHUT_RDWR)
            self.control.close()
        self.control, self.frozen = None, False

    def look(self) -> list[dict[str, Any]]:
        return self.ask("look") or []

    def kill(self, pid: int, signum: int) -> bool:
        return bool(self.ask("signal", pid=pid, signal=signum))

    def freeze(self) -> None:
        self.frozen = True
        self.ask("freeze")

    def thaw(self) -> None:
        self.frozen = False
        self.ask("thaw")

    def fill(self) -> None:
        """No room on its disk, but for what is reserved already."""
        with open(self.home / ".filler", "wb", 0) as f:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while f.write(b"x" * size) == size:
                        pass

    def set_clock(self, ahead: float) -> None:
        """By so many seconds, from now on."""
        with open(self.clock, "r+b" if self.clock.exists() else "wb", 0) as f:
            f.write(struct.pack("q", int(ahead * 10**9)))

    def free(self) -> None:
        (self.home / ".filler").unlink(missing_ok=True)

    # -- of a node ----------------------------------------------------------------------------------------
    @property
    def runs(self) -> list[Path]:
        return [path for path in self.home.glob(".fleet/runs/*-*") if not path.name.endswith(".stop")]

    def states(self) -> list[str]:
        return [str(read(path / "status.json").get("state")) for path in self.runs]


class Typed:
    """A fleet command on a head. words: what was typed. out: what it says goes there."""

    def __init__(self, head: Machine, words: tuple[str, ...], *, terminal: bool = False) -> None:
        self.head, self.words, self.terminal = head, words, terminal
        self.out = head.place / f"out.{len(list(head.place.glob('out.*')))}"
        self.began = time.monotonic()
        self.killed: str | None = None  # by the case
        self.last: int | None = None
        fds = []
        self.screen: int | None = None
        if terminal:
            self.screen, theirs = pty.openpty()
            fds = [theirs] * 3
            threading.Thread(target=self._copy, args=(self.screen,), daemon=True).start()
        else:
            fds = [os.open("/dev/null", os.O_RDONLY), os.open(self.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)]
            fds.append(fds[1])
        argv = ["--transport", "fuzz", *words]
        if words[0] in ("runs",):
            argv = list(words)
        self._control, self._ended = head.control, head.ended
        self.pid: int | None = head.ask("type", fds, argv=argv, cwd=str(head.home), terminal=terminal)
        for fd in set(fds):
            os.close(fd)

    def _copy(self, screen: int) -> None:
        with open(self.out, "ab", 0) as out, suppress(OSError):
            while data := os.read(screen, 1 << 16):
                out.write(data)

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs; 137 where its machine went."""
        if self.last is None:
            gone = self.head.control is not self._control or self.pid is None
            code = self._ended.get(self.pid or 0, 137 if gone else None)
            self.last = code if code is None or code >= 0 else 128 - code
        return self.last

    def wait(self, seconds: float) -> int | None:
        until(lambda: self.code is not None, seconds)
        return self.code

    def signal(self, signum: int) -> None:
        if self.code is None and self.pid is not None and self.head.control is self._control:
            self.head.kill(self.pid, signum)

    def press(self, key: bytes) -> None:
        if self.screen is not None:
            with suppress(OSError):
                os.write(self.screen, key)

    def hang_up(self) -> None:
        """Its terminal is closed."""
        if self.screen is not None:
            screen, self.screen = self.screen, None
            os.close(screen)
        else:
            self.signal(signal.SIGHUP)

    @property
    def text(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def __str__(self) -> str:
        return f"{self.head.name}$ fleet {' '.join(self.words)}"


class World:
    """place: an empty folder; a tmpfs is mounted there, in a mount namespace of this process."""

    def __init__(self, place: Path, forges: Forges, nodes: int, slots: int) -> None:
        self.place, self.forges = place, forges
        if LIBC.unshare(NEWNS | NEWNET):
            raise Stuck(f"no namespaces of its own: {os.strerror(ctypes.get_errno())}")
        if LIBC.mount(b"none", b"/", None, ctypes.c_ulong(REC | PRIVATE), None):
            raise Stuck(f"no mounts of its own: {os.strerror(ctypes.get_errno())}")
        _mount("tmpfs", place, "size=128m,mode=755")
        self.own = place / "own"
        self.own.mkdir()
        names = [f"n{number + 1}" for number in range(nodes)]
        self.nodes = {name: Machine(self, name, "node") for name in names}
        self.heads = {name: Machine(self, name, "head") for name in HEADS}
        self.spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("mnt", "net")]
        lines = ["link set lo up", *(f"addr add 10.9.9.{at + 1}/32 dev lo" for at in range(nodes))]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        self.link = Link(place / "links", list(HEADS), names, lambda node: self.nodes[node].listens)
        ranks = place / "ranks"
        ranks.write_bytes(RANKS.read_bytes())
        ranks.chmod(0o755)
        hosts = "".join(f"  {name}: {{address: 10.9.9.{at + 1}}}\n" for at, name in enumerate(names))
        for head in self.heads.values():
            text = f"defaults: {{workdir: {place}, slots: {slots}}}\nhosts:\n{hosts}"
            (head.home / "fleet.yaml").write_text(text)
        self.typed = list[Typed]()

    def start(self) -> None:
        self.link.start()
        for machine in self.machines():
            machine.boot()

    def machines(self) -> Iterator[Machine]:
        yield from self.nodes.values()
        yield from self.heads.values()

    def type(self, head: str, *words: str, terminal: bool = False) -> Typed:
        typed = Typed(self.heads[head], words, terminal=terminal)
        self.typed.append(typed)
        return typed

    def roads(self, head: str | None = None, node: str | None = None) -> list[tuple[str, str]]:
        return [(h, n) for h in HEADS for n in self.nodes if head in (None, h) and node in (None, n)]

    def run_folder(self, head: str) -> Path | None:
        """Of the first run that a head knows of."""
        return next(iter(sorted(self.heads[head].home.glob("runs/*-*-*-*"))), None)

    def owns(self, attempt: int | str = "*") -> list[Path]:
        """What ranks wrote themselves: HOST.RANK.ATTEMPT.PID."""
        return sorted(self.own.glob(f"*.*.{attempt}.*"))

    def go(self, own: Path, attempt: int) -> None:
        """Have ranks come to their end that write there."""
        own.mkdir(exist_ok=True)
        (own / f"go.{attempt}").touch()

    def close(self) -> None:
        for machine in self.machines():
            machine.power_off()
        self.link.close()


def read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def process_of(pid: int) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """As a machine tells of one that it has, seen from outside; and its environment."""
    try:
        stat, argv, environ = (Path(f"/proc/{pid}/{file}").read_text(errors="replace") for file in FILES)
    except OSError:
        return None, {}
    comm, _, rest = stat.partition("(")[2].rpartition(")")
    env = dict(pair.partition("=")[::2] for pair in environ.split("\0") if "=" in pair)
    state, ppid = rest.split()[:2]
    process = {"pid": pid, "ppid": int(ppid), "state": state, "comm": comm, "argv": argv.rstrip("\0").split("\0")}
    return {**process, "run": env.get("FLEET_RUN_ID"), "rank": env.get("RANK")}, env


def _mount(kind: str, where: Path, options: str) -> None:
    if LIBC.mount(b"none", os.fsencode(where), kind.encode(), ctypes.c_ulong(0), options.encode()):
        raise Stuck(f"{where}: {os.strerror(ctypes.get_errno())}")
