"""Nodes that lie, to every verb: `python -m tests.fuzz.hostile --seconds 600`.

One of two hosts has a python3 that runs the real programs, but for one of its frames, chosen by chance, the head gets
something else: other names, paths, types, numbers, an order, a flood, silence, beats without end. Each command is a
process of its own: it must end in time, with little memory, without a traceback, with nothing written but what the verb
writes, and nothing on the terminal that drives it. tests/fuzz/rows.py has what verbs in a row make, and what is
believed of the other host.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import stat
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from fleet.model import Host
from fleet.node.gang import verdict
from fleet.ops import init
from fleet.ops.init import ask
from fleet.ops.run.follow import background
from fleet.ops.run.follow import follow as following
from fleet.ops.run.launch import loop
from fleet.protocol.frames import PREAMBLE
from fleet.protocol.state import is_run_id
from fleet.transport import program
from fleet.transport.base import Cancel, Watchdog
from fleet.transport.frames import HEADER, Frame
from fleet.transport.local import LocalSession, LocalTransport, ProcessChannel
from fleet.transport.program import Program
from fleet.transport.ssh.transport import SshTransport
from tests.fuzz import hunting, rows
from tests.in_process import command_line
from tests.liar import PAYLOADS, RAW, TEXTS, places
from tests.wheelmaker import make_env, make_wheel

LIMIT_S = 40.0  # silences are a tenth of what they are, see brisk()
LIMIT_KIB = 300 << 10
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
MARK = "FLEET_HOSTILE"  # in the environment of all that a case starts
EVIL = [
    ".git/config",
    ".bashrc",
    "../.bashrc",
    "../../home/.ssh/authorized_keys",
    "a/../../evil",
    "fabfile.py",
    "fleet.yaml",
    ".fleet-get",
    "-rf",
    "latest",
    "gpu2",
    "x\nactivate: touch /tmp/pwned",
    "gpu1:\n  activate: 'true'",
    "\u2028",
    "\x1b]52;c;aaaa\x07",
    "{HEAD}/home/.bashrc",
    "{HEAD}/work/fleet.yaml",
    "{HEAD}",
]
NUMBERS = [-1, 0, 1, 2, 255, 256, 65536, 1 << 31, 1 << 40, (1 << 62) - 1, 1 << 63, 10**400, 1.5, float("nan"), 1e308]
CHANGES = ["value"] * 8 + ["evil"] * 16 + ["number"] * 4 + ["gone", "more", "twice", "again", "drop", "swap"]
CHANGES += ["flood", "flood-out", "flood-noise", "flood-beats", "flood-lists", "silence", "beats", "end", "cut", "raw"]
CHANGES += ["text", "kind", "noise", "status", "errors"]
ENDLESS = {"flood", "flood-out", "flood-noise", "flood-beats", "flood-lists", "silence", "beats"}
INSTEAD = {"flood-out", "flood-noise", "silence", "beats"}  # of a message, for ever


def brisk(silence: Watchdog, plain: Callable[[Watchdog], float] = Watchdog.seconds) -> float:
    """Time without a word passes ten times as fast."""
    return plain(silence) * 10


def hurried(
    self: Program, *, deadline: float | None = None, plain: Callable[..., Iterator[Frame]] = Program.frames, **more: Any
) -> Iterator[Frame]:
    """A deadline comes in a third of its time."""
    now = time.monotonic()
    return plain(self, deadline=deadline and now + (deadline - now) / 3, **more)


@dataclass
class Lie:
    """what: one of CHANGES, from frame `at` of conversation `talk` with gpu1 on. told: whether it came to that."""

    what: str
    talk: int
    at: int
    seed: int
    head: str = ""
    kind: str = ""
    words: Sequence[str] = ()
    told: bool = False
    place: str = ""

    def on(self, kind: bytes, stream: int, payload: bytes) -> list[bytes]:
        """What comes in the place of a frame."""
        pick = random.Random(self.seed)
        whole = HEADER.pack(kind, stream, len(payload)) + payload
        what = self.what
        if what in ("value", "evil", "number", "gone", "more", "twice", "flood-lists") and kind in b"JX":
            value = json.loads(payload)
            where = list(places(value)) if isinstance(value, dict) else []
            if where:
                where = self.fitting(what, where) or where
                inside, key = pick.choice(where)
                self.place = f"{key!r} of {str(value.get('event'))!r}"
                if what == "gone":
                    del inside[key]
                elif what == "more":
                    value[pick.choice(TEXTS)] = self.junk(pick)
                elif what == "flood-lists":
                    lists = [(i, k) for i, k in where if isinstance(i[k], list) and i[k]] or [(inside, key)]
                    inside, key = pick.choice(lists)
                    inside[key] = (inside[key] if isinstance(inside[key], list) else ["x"]) * 200
                elif what == "evil":
                    inside[key] = pick.choice(self.words).replace("{HEAD}", self.head)
                elif what == "number":
                    inside[key] = pick.choice(NUMBERS)
                else:
                    inside[key] = self.junk(pick)
                text = json.dumps(value).encode()
                if what == "twice":
                    text = b'{"event": 7, ' + json.dumps(value).encode()[1:]
                return [HEADER.pack(kind, stream, len(text)) + text]
        if what == "again":
            return [whole] * pick.choice([2, 3, 50])
        if what == "drop":
            return []
        if what == "raw":
            return [pick.choice(RAW), whole]
        if what == "text":
            text = pick.choice(PAYLOADS)
            return [HEADER.pack(pick.choice([b"J", b"X"]), 0, len(text)) + text, whole]
        if what == "kind":
            return [
                HEADER.pack(
                    pick.choice([b"O", b"J", b"X", b"H", b"?"]), pick.choice([0, 1, 5, 2**32 - 1]), len(payload)
                )
                + payload
            ]
        if what == "noise":
            text = pick.choice([*TEXTS, *EVIL]).encode("utf-8", "surrogatepass")
            return [struct.pack(">cII", b"O", pick.choice([0, 1, 2]), len(text)) + text, whole]
        return [whole]

    @staticmethod
    def fitting(what: str, where: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        if what == "evil":
            return [(inside, key) for inside, key in where if isinstance(inside[key], str) and key != "event"]
        if what == "number":
            return [(inside, key) for inside, key in where if type(inside[key]) in (int, float)]
        return []

    def junk(self, pick: random.Random) -> Any:
        return pick.choice(
            [
                None,
                True,
                False,
                [],
                {},
                "",
                [[]],
                [None],
                {"x": 1},
                [{"a": [{}]}],
                ["x"] * 3000,
                -1,
                1.5,
                *TEXTS,
                *NUMBERS,
            ]
        )

    def endless(self) -> Iterator[bytes]:
        """What comes for ever, once it was told."""
        what = self.what
        while True:
            if what == "flood-out":
                yield HEADER.pack(b"O", 0, 1 << 16) + b"y" * (1 << 16)
            elif what == "flood-noise":
                yield b"\x1b[2Jnoise\n" * 5000
            elif what in ("flood-beats", "beats"):
                if what == "beats":
                    time.sleep(0.05)
                yield HEADER.pack(b"H", 0, 0) * (1 if what == "beats" else 1000)


class LyingChannel:
    """A channel to a real program, and what the head gets of it."""

    def __init__(
        self, inner: ProcessChannel, lie: Lie | None, talk: int, heard: Callable[[int, int, str], None]
    ) -> None:
        self._inner, self._talk, self._heard = inner, talk, heard
        self._lie = lie if lie is not None and lie.talk == talk else None
        self._buffer, self._started, self._index = b"", False, 0
        self._out: collections.deque[bytes] = collections.deque()
        self._endless: Iterator[bytes] | None = None
        self._silent = self._ended = False
        self._held = b""
        self._closed = False

    def send(self, data: bytes) -> None:
        self._inner.send(data)

    def send_eof(self) -> None:
        self._inner.send_eof()

    def recv_stderr(self) -> bytes:
        said = self._inner.recv_stderr()
        return said + b"\x1b[2Jno\n" * 9000 if self._lie and self._lie.what == "errors" and self._lie.told else said

    def wait(self, timeout: float) -> int | None:
        status = self._inner.wait(timeout)
        if self._lie and self._lie.what == "status" and self._lie.told:
            return random.Random(self._lie.seed).choice([None, 1, 97, 126, 127, 143, 255])
        return status

    def close(self) -> None:
        self._closed = True
        self._inner.close()

    def recv_both(self, timeout: float) -> tuple[bytes, bytes] | None:
        """Of exec, which has no frames: its outputs as they are, with something between."""
        said = self._inner.recv_both(timeout)
        if said is None or not any(said):
            return said
        self._heard(self._talk, self._index, "exec")
        lie = self._lie
        if lie is None or lie.at != self._index or lie.told:
            self._index += 1
            return said
        self._index += 1
        lie.told, pick = True, random.Random(lie.seed)
        noise = pick.choice([*RAW, *(text.encode("utf-8", "surrogatepass") for text in (*TEXTS, *EVIL))])
        at = pick.randint(0, len(said[0]))
        return said[0][:at] + noise + said[0][at:], said[1] + noise * pick.choice([0, 1])

    def recv(self, timeout: float) -> bytes | None:
        until = time.monotonic() + timeout
        while True:
            if self._out:
                return self._out.popleft()
            if self._ended:
                return b""
            if self._closed and (self._endless or self._silent):
                return b""
            if self._endless is not None:
                return next(self._endless)
            left = until - time.monotonic()
            if self._silent:
                time.sleep(max(0.0, min(left, 0.05)))
                self._inner.recv(0.0)
                if time.monotonic() >= until:
                    return None
                continue
            data = self._inner.recv(max(0.0, left))
            if data is None:
                return None
            if data == b"":
                self._ended = True
                if self._held:
                    self._out.append(self._held)
                    self._held = b""
                continue
            self._take(data)
            if not self._out and time.monotonic() >= until:
                return None

    def _take(self, data: bytes) -> None:
        self._buffer += data
        if not self._started:
            at = self._buffer.find(PREAMBLE)
            if at < 0:
                return
            self._out.append(self._buffer[: at + len(PREAMBLE)])
            self._buffer, self._started = self._buffer[at + len(PREAMBLE) :], True
        while len(self._buffer) >= HEADER.size:
            kind, stream, length = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end or self._ended or self._silent or self._endless is not None:
                return
            payload, whole = self._buffer[HEADER.size : end], self._buffer[:end]
            self._buffer = self._buffer[end:]
            if kind == b"H":
                self._out.append(whole)
                continue
            self._heard(self._talk, self._index, kind.decode())
            self._frame(kind, stream, payload, whole)
            self._index += 1

    def _frame(self, kind: bytes, stream: int, payload: bytes, whole: bytes) -> None:
        lie = self._lie
        if lie is None or lie.told and lie.what != "swap" or lie.at > self._index:
            self._out.append(whole)
            return
        if lie.what == "swap":
            if not lie.told:
                lie.told, self._held = True, whole
            elif self._held:
                self._out += [whole, self._held]
                self._held = b""
            else:
                self._out.append(whole)
            return
        lie.told = True
        if lie.what == "end":
            self._ended = True
        elif lie.what == "cut":
            self._out.append(whole[: random.Random(lie.seed).randint(0, len(whole))])
            self._ended = True
        elif lie.what == "silence":
            self._silent = True
        elif lie.what == "flood":
            self._endless = iter(lambda: whole, None)
        elif lie.what in ("flood-out", "flood-noise", "flood-beats", "beats"):
            self._endless = lie.endless()
        else:
            self._out += lie.on(kind, stream, payload)
            if lie.what == "flood-lists" and self._out:
                self._endless = iter(lambda said=self._out[-1]: said, None)  # type: ignore[misc]


class LyingTransport(LocalTransport):
    """Each host has a home of its own. lie: what gpu1 says in a place. heard: (conversation, frame, kind) of gpu1."""

    name = "lying"

    def __init__(self, base: Path, lie: Lie | None, heard: Callable[[int, int, str], None]) -> None:
        self.base, self.lie, self.heard, self.talks = base, lie, heard, 0

    def connect(self, host: Host, cancel: Cancel) -> Any:
        transport, home = self, self.base / "nodes" / host.name
        lying = host.name in ("gpu1", "127.0.0.1")

        class Session(LocalSession):
            def start(self, command: str) -> Any:
                env = {**os.environ, "HOME": str(home), MARK: str(transport.base)}
                channel = ProcessChannel(["/bin/sh", "-c", command], self.host, patience=2.0, cwd=home, env=env)
                self._channels.append(channel)
                if not lying or command.startswith("exec sh -c ") and "fleet rsync" in command:
                    return channel
                transport.talks += 1
                lie = transport.lie
                return LyingChannel(channel, lie, transport.talks - 1, transport.heard)

        return Session(host)

    def in_place_of(self, ssh: Callable[..., Any]) -> Callable[..., Any]:
        """Makes this one, which knows where hosts are as ssh's does."""

        def made(*args: Any, **more: Any) -> LyingTransport:
            self.resolve = ssh(*args, **more).resolve  # type: ignore[method-assign]
            return self

        return made


@dataclass
class Verb:
    """argv: {node} is gpu1's place for what it has. wrote: what it may write on the head, below `work` and `home`.
    before: commands that go before it, with honest nodes. follows: a run, which may say something, or nothing, as long
    as it lives. draw: makes what a case finds, and says what is typed in a row, instead of argv. words: what a liar has
    in the place of a text. finds: what is wrong afterwards, by the ground and what was printed."""

    argv: list[str]
    wrote: str
    before: list[list[str]] = field(default_factory=list)
    inventory: str = "fleet.yaml"
    weight: int = 2
    follows: bool = False
    draw: Callable[[Path, random.Random], list[list[str]]] | None = None
    words: Callable[[Path], list[str]] = lambda base: EVIL
    finds: Callable[[Path, str], Iterator[str]] = lambda base, out: iter(())


RUN = r"(job|long|short)-\d{8}-\d{6}-[0-9a-f]{4}"
_NODE = r"(gpu[12]|127\.0\.0\.[12])"
_OF_A_RUN = (
    r"\.lock|\.made|(run|summary|about|state)\.json|(events\.jsonl|leader\.log)|"
    rf"{_NODE}|{_NODE}/(node\.log|rank\d+\.(out|err))"
)
RUNS = rf"work/runs|work/runs/(\.gitignore|{RUN}(/({_OF_A_RUN}))?)"
OWN = (
    r"home/\.fleet(/(sources|ids|brought|locks|turns|known|deliveries|failed)(/.*)?|/[\w.-]+)?|home/\.cache(/.*)?"
    r"|work/\w+/\.fleet-source"
)
STAGE = r"\.fleet-get"
LAUNCH = ["launch", "-w", "gpu1", "--engine", "command", "--grace", "1"]
FORGET = ["forget"]  # what the head has of runs
VERBS = {
    "sync": Verb(["sync", "tree", "--to", "{node}/there"], OWN, weight=6),
    "sync-large": Verb(["sync", "large", "--to", "{node}/there"], OWN),
    "sync-again": Verb(
        ["sync", "tree", "--to", "{node}/there", "--force", "--max-delete", "all"],
        OWN,
        [["sync", "large", "--to", "{node}/there"]],
    ),
    "data": Verb(["sync", "--data", "large:{node}/data/"], OWN, weight=6),
    "from": Verb(["sync", "--data", "{node}/gives:{node}/taken", "--from", "gpu1"], OWN, weight=4),
    "wheels": Verb(["sync", "-w", "gpu1", "--wheels", "wheels"], OWN, weight=3),
    "get": Verb(
        ["get", "{node}/gives", "--to", "got"],
        rf"{OWN}|work/got(/gpu[12])?(/gives(/.*)?)?|work/got/{STAGE}(/.*)?",
        weight=12,
    ),
    "get-flat": Verb(
        ["get", "{node}/gives/only"], rf"{OWN}|work/only|work/gpu[12](/only)?|work/{STAGE}(/.*)?", weight=8
    ),
    "exec": Verb(["exec", "--", "sh", "-c", "echo hello; echo there >&2"], OWN, weight=3),
    "check": Verb(["check", "--engine", "command"], OWN, weight=3),
    "init": Verb(["init", "-y", "hostfile"], rf"{OWN}|work/new\.yaml", inventory="new.yaml", weight=6),
    "kill-port": Verb(["kill-port", "-y", "--grace", "1", "1"], OWN),
    "launch": Verb([*LAUNCH, "./job"], rf"{OWN}|{RUNS}", [], "plain.yaml", 8, True),
    "ps": Verb(["ps", "--all"], OWN, [[*LAUNCH, "./job"]], "plain.yaml"),
    "attach": Verb(["attach", "{run}"], rf"{OWN}|{RUNS}", [[*LAUNCH, "./job"], FORGET], "plain.yaml", 3, True),
    "logs": Verb(["logs", "{run}"], rf"{OWN}|{RUNS}", [[*LAUNCH, "./job"], FORGET], "plain.yaml", 3),
    "live": Verb(["attach", "latest"], rf"{OWN}|{RUNS}", [[*LAUNCH, "--detach", "./short"]], "plain.yaml", 2, True),
    "stop": Verb(["stop", "{run}"], rf"{OWN}|{RUNS}", [[*LAUNCH, "--detach", "./long"], FORGET], "plain.yaml", 3),
    "stacks": Verb(["stacks", "latest"], rf"{OWN}|{RUNS}", [[*LAUNCH, "--detach", "./long"]], "plain.yaml", 2),
    "gets": Verb(["get", "-w", "gpu1", "{node}/gives", "--to", "got"], rf"{OWN}|work/got(/.*)?", weight=16),
    "init-launch": Verb(["init", "-y", "hostfile"], rf"{OWN}|work/new\.yaml|{RUNS}", inventory="new.yaml", weight=8),
    "copies": Verb(["--json", "sync", "--data", "large:~/data/"], OWN, weight=6),
    "ps-others": Verb(["--json", "ps", "--all"], OWN, [[*LAUNCH, "./job"], rows.LAUNCH_THERE], "plain.yaml", 6),
    "build": Verb(["build", "./ext", "--cpu", "--on", "gpu1"], rf"{OWN}|work/builds(/.*)?", weight=1),
}
for _name, (_draw, _words, _finds) in rows.ROWS.items():
    VERBS[_name] = replace(VERBS[_name], draw=_draw, words=_words, finds=_finds)
SETUP = "from setuptools import setup\nsetup(name='tinyext', version='0.1', py_modules=['tinyext'])\n"


class Ground:
    """base/head: what must stay as it is; base/nodes/gpu1, gpu2."""

    def __init__(self, base: Path) -> None:
        self.base, self.stored = base / "ground", base / "stored"
        head, work = self.base / "head", self.base / "head/work"
        for folder in ("head/home/.ssh", "head/work/tree/sub", "head/work/large", "head/work/wheels", "head/work/ext"):
            (self.base / folder).mkdir(parents=True)
        (head / "home/.bashrc").write_text("# mine\n")
        (head / "home/.ssh/authorized_keys").write_text("# mine\n")
        python = make_env(base / "env")
        hosts = (
            f"gpu1: {{python: {python}, data_address: 127.0.0.1}}, gpu2: {{python: {python}, data_address: 127.0.0.1}}"
        )
        (work / "fleet.yaml").write_text(f"hosts: {{{hosts}}}\n")
        plain = f"gpu1: {{python: {python}}}, gpu2: {{python: {python}}}"
        (work / "plain.yaml").write_text(f"hosts: {{{plain}}}\n")
        (work / "hostfile").write_text("127.0.0.1\n127.0.0.2\n")
        (work / "tree/a.py").write_text("a = 1\n")
        (work / "tree/sub/b").write_bytes(b"b" * 5000)
        (work / "tree/l").symlink_to("a.py")
        (work / "large/one").write_bytes(os.urandom(1 << 21))
        (work / "large/two").write_bytes(b"2" * 1000)
        make_wheel(work / "wheels")
        (work / "ext/setup.py").write_text(SETUP)
        (work / "ext/tinyext.py").write_text("x = 1\n")
        for name, text in (("job", "echo hello; echo there >&2"), ("long", "sleep 60"), ("short", "sleep 1")):
            (work / name).write_text(f"#!/bin/sh\n{text}\n")
            (work / name).chmod(0o755)
        for node in ("gpu1", "gpu2", "127.0.0.1", "127.0.0.2"):
            (self.base / "nodes" / node / "gives/sub").mkdir(parents=True)
            for name in ("a", "sub/b"):
                (self.base / "nodes" / node / "gives" / name).write_bytes(name.encode() * 2000)
        (self.base / "nodes/gpu1/gives/.git").mkdir()
        (self.base / "nodes/gpu1/gives/.git/config").write_text("[core]\n")
        (self.base / "nodes/gpu1/gives/only").write_text("only here\n")
        (self.base / "nodes/gpu1/gives/link").symlink_to("a")
        shutil.copytree(self.base, self.stored, symlinks=True)

    def restore(self) -> None:
        for installed in self.base.parent.glob("env/lib/python3*/site-packages/tiny*"):
            shutil.rmtree(installed)
        shutil.rmtree(self.base, ignore_errors=True)
        shutil.copytree(self.stored, self.base, symlinks=True)

    def words(self, argv: Sequence[str]) -> list[str]:
        return [word.replace("{node}", str(self.base / "nodes/gpu1")) for word in argv]

    def seen(self) -> dict[str, tuple[Any, ...]]:
        """What is on the head."""
        root, found = self.base / "head", dict[str, tuple[Any, ...]]()
        for folder, folders, names in os.walk(root):
            for name in folders + names:
                full = os.path.join(folder, name)
                info = os.lstat(full)
                what: tuple[Any, ...] = (info.st_mode,)
                if os.path.islink(full):
                    what += (os.readlink(full),)
                elif name in names:
                    what += (info.st_size, info.st_mtime_ns)
                found[os.path.relpath(full, root)] = what
        return found

    def end_all(self) -> None:
        end_all(str(self.base))


def left(mark: str) -> list[int]:
    """Processes that a case has left."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def end_all(mark: str) -> None:
    for _ in range(20):
        pids = left(mark)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.02)


@dataclass
class Ended:
    code: int | None = None
    out: str = ""
    err: str = ""
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    kib: int = 0
    told: bool = False
    place: str = ""
    frames: list[tuple[int, int, str]] = field(default_factory=list)


def in_a_process(
    ground: Ground, verb: Verb, lie: Lie | None, json_: bool, seconds: float, row: Sequence[Sequence[str]] = ()
) -> Ended:
    """row: what is typed, instead of the verb's argv."""
    return in_a_fork(lambda: _commands(ground, verb, lie, json_, row or [verb.argv]), seconds)


def in_a_fork(work: Callable[[], dict[str, Any]], seconds: float) -> Ended:
    """What says an Ended's fields, forked off: its memory and its threads are its own."""
    reading, writing = os.pipe()
    began = time.monotonic()
    own = int(Path("/proc/self/statm").read_text().split()[1]) * (os.sysconf("SC_PAGE_SIZE") >> 10)
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            os.setsid()
            said = work()
        except BaseException:
            said = {"faults": [traceback.format_exc()]}
        with open(writing, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(writing)
    data, until = b"", began + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            piece = os.read(reading, 1 << 20)
            data += piece
            if not piece:
                break
    os.close(reading)
    ended = Ended(seconds=time.monotonic() - began)
    if left <= 0:
        os.kill(pid, signal.SIGKILL)
    _, _, usage = os.wait4(pid, 0)
    ended.kib = usage.ru_maxrss - own  # of which it has all to begin with
    for key, value in json.loads(data or b"{}").items():
        setattr(ended, key, value)
    return ended


def _commands(ground: Ground, verb: Verb, lie: Lie | None, json_: bool, row: Sequence[Sequence[str]]) -> dict[str, Any]:
    work = ground.base / "head/work"
    os.chdir(work)
    frames, run = list[tuple[int, int, str]](), ""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    environ = {"HOME": str(ground.base / "head/home"), MARK: str(ground.base)}
    for key in list(os.environ):
        if key.startswith(("FLEET_", "XDG_")) and key != MARK:
            del os.environ[key]
    with mock.patch.dict(os.environ, environ):
        for argv in verb.before:
            if argv == FORGET:
                run = next(path.name for path in (work / "runs").iterdir() if is_run_id(path.name))
                shutil.rmtree(work / "runs")
                continue
            honest = LyingTransport(ground.base, None, lambda *_: None)
            done = command_line(["-i", verb.inventory, *ground.words(argv)], honest)
            if done.code != 0 and "--detach" not in argv:  # its leader knows no such transport
                return {"faults": [f"{argv} does not go: {done.err}"]}
        waits: list[tuple[Any, str, Any]] = [(Watchdog, "seconds", brisk), (Program, "frames", hurried)]
        patches: list[tuple[Any, str, Any]] = [
            *(waits if lie is not None else ()),  # honest nodes have all of their time: the machine may be busy
            (program, "ENDING_SECONDS", 5.0),
            (following, "RETRY_SECONDS", 0.1),
            (background, "RETRY_SECONDS", 0.1),
            (verdict, "PAUSE_SECONDS", 0.0),
            (loop, "TICK", 0.02),
            (ask, "SECONDS", 1.0),
            (ask, "trust", lambda inventory, *_: (inventory, {})),  # it is ssh's, whose host keys are not ours
        ]
        transport = LyingTransport(ground.base, lie, lambda *said: frames.append(said))
        patches.append((init, "SshTransport", transport.in_place_of(SshTransport)))
        for thing, name, value in patches:
            setattr(thing, name, value)
        before = ground.seen()
        if lie is not None:
            lie.words = verb.words(ground.base)
        typed = [[word.replace("{run}", run) for word in ground.words(argv)] for argv in row]
        ended = [command_line(["-i", verb.inventory, *["--json"] * json_, *words], transport) for words in typed]
        after = ground.seen()
    latest = "work/runs/latest"  # fleet's link to a run's folder, where there is one
    if latest in after and stat.S_ISLNK(after[latest][0]) and re.fullmatch(RUN, after[latest][1]):
        after.pop(latest)
        before.pop(latest, None)
    changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
    odd = sorted(path for path in changed if not re.fullmatch(verb.wrote, path) or ".git" in path.split("/"))
    faults = [f"it wrote {odd[:5]}"] if odd else []
    faults += [f"a thread: {fault.exc_value!r}" for each in ended for fault in each.faults]
    return {
        "code": max(each.code for each in ended),
        "out": "".join(each.out for each in ended)[-20000:],
        "err": "".join(each.err for each in ended)[-20000:],
        "faults": faults,
        "told": lie is not None and lie.told,
        "place": lie.place if lie is not None else "",
        "frames": frames[:3000],
    }


def judge(name: str, lie: Lie | None, ended: Ended, json_: bool, ground: Ground) -> list[str]:
    """What is wrong with how it ended."""
    wrong = list(ended.faults)
    if ended.code is None and not wrong:
        wrong.append(f"no end within {LIMIT_S:g} s")
    if ended.code == 125 or "a fault in fleet itself" in ended.out + ended.err:
        wrong.append("a fault in fleet itself")
    if "Traceback (most recent call last)" in ended.err + ended.out:
        wrong.append("a traceback")
    if ended.kib > LIMIT_KIB:
        wrong.append(f"{ended.kib >> 10} MiB of memory")
    if not json_ and (found := CONTROL.search(ended.out + ended.err)):
        wrong.append(f"a raw {found[0]!r} on the terminal")
    # what ps cannot learn of a host is a warning, and so is what init cannot of its neighbours
    matters = not name.startswith("ps") and not (name.startswith("init") and lie is not None and lie.talk > 0)
    if lie is not None and ended.told and lie.what in INSTEAD and lie.kind == "J" and ended.code == 0 and matters:
        wrong.append("exit code 0")
    new = ground.base / "head/work/new.yaml"
    if name in ("init", "init-launch") and new.exists():
        wrong += odd_inventory(new)
    wrong += VERBS[name].finds(ground.base, ended.out)
    return wrong


def odd_inventory(path: Path) -> list[str]:
    """What of an inventory that init wrote was not the user's, nor can be a fact."""
    import yaml

    try:
        held = yaml.safe_load(path.read_text())
        assert isinstance(held, dict)
        hosts = held.get("hosts") or {}
        names = {name for key, value in hosts.items() for name in [key] if value is None or isinstance(value, dict)}
        odd = [key for key in names if key not in ("127.0.0.1", "127.0.0.2")]
        odd += [
            f"{key}.{word}"
            for key, value in hosts.items()
            for word in value or {}
            if word in ("activate", "env", "proxy_jump")
        ]
        odd += [key for key in held if key not in ("hosts", "defaults", "python", "workdir")]
        return [f"the inventory has {odd}"] if odd else []
    except Exception as error:
        return [f"the inventory that init wrote: {error!r}"]


class Hunter:
    """verb: the only one that is typed."""

    def __init__(self, say: Callable[[str], None] = print, verb: str | None = None) -> None:
        self.verbs = [verb] if verb is not None else list(VERBS)
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-hostile-"))
        self.ground, self.say = Ground(self.folder), say
        self.frames: dict[str, list[tuple[int, int, str]]] = {}
        self.counts: collections.Counter[str] = collections.Counter()

    def honest(self, name: str) -> None:
        """Which frames there are to lie in."""
        self.ground.restore()
        ended = in_a_process(self.ground, VERBS[name], None, False, 2 * LIMIT_S)
        self.ground.end_all()
        wrong = judge(name, None, ended, False, self.ground)
        if wrong or ended.code != 0 and name not in ("kill-port", "check"):  # two names of this machine are no network
            raise AssertionError(f"honest nodes, {name}: {wrong}, {ended.code}\n{ended.out}\n{ended.err}")
        self.frames[name] = [tuple(frame) for frame in ended.frames]  # type: ignore[misc]

    def case(self, seed: int) -> str | None:
        pick = random.Random(seed)
        name = pick.choices(self.verbs, [VERBS[verb].weight for verb in self.verbs])[0]
        if name not in self.frames:
            self.honest(name)
        if not self.frames[name]:
            return None
        talk, at, kind = pick.choice(self.frames[name])
        changes = [change for change in CHANGES if not VERBS[name].follows or change not in ENDLESS]
        lie = Lie(pick.choice(changes), talk, at, pick.randrange(1 << 30), str(self.ground.base / "head"), kind)
        return self.one(name, lie, pick.random() < 0.3, seed)

    def one(self, name: str, lie: Lie, json_: bool, seed: int) -> str | None:
        self.ground.restore()
        verb = VERBS[name]
        row = verb.draw(self.ground.base, random.Random(lie.seed)) if verb.draw is not None else ()
        ended = in_a_process(self.ground, verb, lie, json_, LIMIT_S, row)
        wrong = judge(name, lie, ended, json_, self.ground)
        self.ground.end_all()
        self.counts[name] += 1
        self.counts["told"] += ended.told
        if not wrong:
            return None
        last = (ended.err or ended.out).strip().splitlines()[-3:]
        return (
            f"seed {seed}: {name}{' --json' * json_}, {lie.what} {ended.place} in frame {lie.at} of {lie.talk}: "
            f"{'; '.join(wrong)} (code {ended.code}, {ended.seconds:.1f} s, {ended.kib >> 10} MiB)\n"
            + "\n".join(f"    {line[:300]!r}" for line in last)
        )

    def close(self) -> None:
        self.ground.end_all()
        shutil.rmtree(self.folder, ignore_errors=True)


def hunt(first: int, seconds: float, most: int = 1, say: hunting.Say = print, verb: str | None = None) -> list[str]:
    """Cases from a seed on, for so long, or until so many faults are found."""
    hunter = Hunter(say, verb)
    try:
        found, tried = hunting.hunt(hunter.case, first, seconds, most, say)
    finally:
        hunter.close()
    counts = ", ".join(f"{count} {name}" for name, count in sorted(hunter.counts.items()))
    say(f"hostile: {tried}: {counts}; {len(found)} faults")
    return found


def main() -> int:
    parser = hunting.parser()
    parser.add_argument("--verb", choices=VERBS, help="this one alone; a seed is another case then")
    given = parser.parse_args()

    def one(seed: int) -> str | None:
        hunter = Hunter(verb=given.verb)
        try:
            return hunter.case(seed)
        finally:
            hunter.close()

    return hunting.run(given, one, lambda first, say: hunt(first, given.seconds, given.faults, say, given.verb))


if __name__ == "__main__":
    sys.exit(main())
