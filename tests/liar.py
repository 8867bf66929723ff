"""Nodes that lie: what honest programs said is recorded once, and said again with changes that hypothesis chooses.

A Recorder is a Transport that runs the real programs here and keeps what they say. A Liar is a Transport whose hosts
say it again, the host `whom` with changes in what one program says.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fleet.model import Host
from fleet.ops.run.follow.background import STOP
from fleet.ops.sessions import ASK, START
from fleet.protocol.frames import PREAMBLE
from fleet.transport import program
from fleet.transport.base import Cancel
from fleet.transport.command import command_line
from fleet.transport.frames import Decoder
from fleet.transport.local import LocalTransport
from tests.changed import programs
from tests.clock import HandClock

# the same ones every time; FLEET_FUZZ=5000 looks harder
steady = settings(
    max_examples=int(os.environ.get("FLEET_FUZZ", "40")),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
SECONDS = 200.0  # for one command line, on a machine that does much else
Part = tuple[str, int, Any]  # kind, stream; of J and X the value, of O the bytes

TEXTS = [
    "",
    "x",
    "0",
    "a\nb",
    "a\0b",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202eab",
    "\ud800",
    "\udcff",
    "../outside/x",
    "..",
    "/",
    "/x" * 3000,
    "~",
    "-rf",
    "{host}",
    "{0}",
    "%s",
    "[red]",
    "running",
    "exited",
    "stopped",
    "done",
    "failed",
    "1.0",
    "nan",
    "١",
    "rank0.out",
    "rank99.err",
    "node.log",
    "../rank0.out",
    "node.log\n",
    "y" * 5000,
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.sampled_from([1 << 31, -(1 << 63), 1 << 64, 10**400]),
    st.floats(),
    st.sampled_from([float("nan"), float("inf"), 1e308]),
    st.sampled_from(TEXTS),
    st.text(max_size=4),
)
JUNK = st.one_of(
    SCALARS,
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.sampled_from(TEXTS), SCALARS, max_size=3),
    st.lists(st.lists(SCALARS, max_size=3), max_size=2),
    st.sampled_from([[[[[[[]]]]]], [{}], {"a": [{}]}, ["x"] * 3000]),
)
RAW = [
    b"",
    b"\0",
    b"garbage\n",
    b"\xff" * 40,
    PREAMBLE,
    struct.pack(">cII", b"J", 0, 2**32 - 1),
    struct.pack(">cII", b"O", 7, 2**31),
    struct.pack(">cII", b"J", 0, 100) + b"{",
    struct.pack(">cII", b"H", 0, 0),
    struct.pack(">cII", b"H", 9, 2000),
    struct.pack(">cII", b"?", 0, 1) + b"x",
]
PAYLOADS = [
    b"",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"{",
    b"{}",
    b"\xff",
    b"[" * 60_000,
    b'{"a":' * 60_000,
    b'{"x": 1e999}',
    b'{"exit_status": 0, "exit_status": "0"}',
    b'{"event": 1, "event": "end", "sizes": {}}',
    b"9" * 5000,
    b'{"facts": {}}',
    b'{"facts": []}',
    b'{"event": "failed", "message": "no\\u001b[2J", "hint": null}',
    b'{"event": "failed", "message": ["no"], "hint": {}}',
]


def frame(kind: str, stream: int, payload: bytes) -> bytes:
    return struct.pack(">cII", kind.encode("latin-1"), stream, len(payload)) + payload


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of all that is in a JSON value."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


@dataclass
class Said:
    """What a node says in one conversation, and how it ends. silent: nothing more comes, and no end either."""

    chunks: list[bytes]
    status: int | None = 0
    stderr: bytes = b""
    silent: bool = False

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        text = repr(b"".join(self.chunks))
        ends = f"{text[:2000]}...{text[-300:]}" if len(text) > 2300 else text
        return f"Said({ends}, {self.status}, {self.stderr!r}, {self.silent})"


def plainly(parts: Sequence[Part]) -> Said:
    return Said([PREAMBLE, *(frame(k, s, v if k == "O" else json.dumps(v).encode()) for k, s, v in parts)])


@st.composite
def lies(draw: Callable[[Any], Any], known: Sequence[Part]) -> Said:
    """An honest conversation with up to four changes."""
    parts: list[Any] = json_copy(known)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(parts) - 1))
        change = draw(
            st.sampled_from(
                ["value"] * 6 + ["gone", "more", "double", "again", "swap", "drop", "raw", "text", "kind", "noise"]
            )
        )
        part = parts[at]
        where = list(places(part[2])) if isinstance(part, tuple) and isinstance(part[2], dict) else []
        if change in ("value", "gone", "double") and where:
            inside, key = where[draw(st.integers(0, len(where) - 1))]
            if change == "value":
                inside[key] = copy.deepcopy(draw(JUNK))  # it may be changed in its turn
            elif change == "gone":
                del inside[key]
            else:
                text = json.dumps(part[2])[1:].encode()
                name = next(iter(part[2]), "x")
                parts[at] = frame(part[0], part[1], b"{%s: 7, %s" % (json.dumps(name).encode(), text))
        elif change == "more" and where:
            part[2][draw(st.sampled_from(TEXTS))] = copy.deepcopy(draw(JUNK))
        elif change == "again":
            parts.insert(draw(st.integers(0, len(parts))), json_copy([part])[0])
        elif change == "swap":
            other = draw(st.integers(0, len(parts) - 1))
            parts[at], parts[other] = parts[other], parts[at]
        elif change == "drop" and len(parts) > 1:
            del parts[at]
        elif change == "raw":
            parts.insert(at, draw(st.sampled_from(RAW)))
        elif change == "text":
            parts.insert(at, frame(draw(st.sampled_from("JX")), 0, draw(st.sampled_from(PAYLOADS))))
        elif change == "kind" and isinstance(part, tuple):
            value = part[2] if isinstance(part[2], bytes) else json.dumps(part[2]).encode()
            parts[at] = frame(draw(st.sampled_from("OJXH?")), draw(st.sampled_from([0, 1, 5, 2**32 - 1])), value)
        elif change == "noise":
            text = draw(st.sampled_from(TEXTS)).encode("utf-8", "surrogatepass")
            parts.insert(at, frame("O", draw(st.integers(0, 3)), text))
    pieces = [p if isinstance(p, bytes) else plainly([p]).chunks[1] for p in parts]
    said = Said([draw(st.sampled_from([PREAMBLE] * 8 + [b"", b"hello\n" + PREAMBLE, PREAMBLE * 2])), *pieces])
    how = draw(st.integers(0, 7))
    if how == 0:  # the end comes early, in the middle of a frame or behind one
        whole = b"".join(said.chunks)
        said.chunks = [whole[: draw(st.integers(0, len(whole)))]]
    elif how == 1:
        whole = b"".join(said.chunks)
        said.chunks = [whole[i : i + 7] for i in range(0, min(len(whole), 7000), 7)] + [whole[7000:]]
    said.silent = draw(st.integers(0, 5)) == 0
    said.status = draw(st.sampled_from([0, 0, 0, 1, 2, 97, 126, 127, 143, 255, None]))
    said.stderr = draw(st.sampled_from(TEXTS)).encode("utf-8", "surrogatepass")
    return said


HONEST_COMMAND = Said([PREAMBLE, b"hello\n", b"\0KEYexit 0\n"], 0, PREAMBLE + b"there\n\0KEYexit 0\n")
WORDS = [
    b"exit 0",
    b"exit 300",
    b"exit 7",
    b"exit x",
    b"ended",
    b"left 1 \x1b[2J{x}",
    b"left -1 x",
    b"left 99999999999 x",
    b"?",
    b"",
]
PRINTED = st.sampled_from([*RAW, *(b"\0KEY" + word + b"\n" for word in WORDS), b"\0KEY", b"\0K", b"y" * 5000])


@st.composite
def lies_of_a_command(draw: Callable[[Any], Any]) -> Said:
    """What may come in place of HONEST_COMMAND. KEY stands for the word that the head gave."""
    begin = st.sampled_from([PREAMBLE] * 8 + [b"", b"hello\n" + PREAMBLE, PREAMBLE * 2])
    ends = st.sampled_from([b"", b"\0KEYexit 0\n", b"\0KEYended\n"])
    out, err = (draw(begin) + b"".join(draw(st.lists(PRINTED, max_size=4))) + draw(ends) for _ in range(2))
    at = draw(st.integers(0, len(out)))
    status = draw(st.sampled_from([0, 0, 1, 97, 127, 143, 255, None]))
    return Said([out[:at], out[at:]], status, err, draw(st.integers(0, 5)) == 0)


def json_copy(parts: Sequence[Any]) -> list[Any]:
    return [
        (p[0], p[1], p[2] if isinstance(p[2], bytes) else json.loads(json.dumps(p[2]))) if isinstance(p, tuple) else p
        for p in parts
    ]


# -- transports ---------------------------------------------------------------------------------------------
@cache
def beginnings() -> dict[bytes, list[str]]:
    """The last names of programs, some in a row, by what each begins with."""
    rows = [*programs(), START, ASK, STOP]
    return {program.shipped(row): [name.rpartition(".")[2] for name in row.split()] for row in rows}


def named(sent: bytes) -> list[str]:
    """The programs that a channel was sent, one to begin after the other; kill_port's operations are two."""
    for text, names in beginnings().items():
        if sent.startswith(text):
            if names == ["kill_port"]:
                return [f"kill_port {json.loads(sent[len(text) :])['op']}"]
            return names
    raise AssertionError(sent[:80])


def begins_another(sent: bytes) -> bool:
    """Whether it is the spec of the next program, and no control line."""
    with contextlib.suppress(ValueError):
        line = json.loads(sent)
        return isinstance(line, dict) and "op" not in line
    return False


class Channel:
    """found: what is said, by the first that was sent and how many programs began after it. clock: who waits for what
    is never said waits by it."""

    def __init__(self, found: Callable[[bytes, int], Said], clock: HandClock) -> None:
        self._found, self._said, self._clock = found, Said([]), clock
        self._sent, self._later = b"", 0

    def send(self, data: bytes) -> None:
        if not self._sent and data in beginnings():
            self._sent, self._later = data, -1  # its spec comes later
        elif not self._sent:
            self._sent, self._said = data, self._found(data, 0)
        elif self._sent.startswith(b"fleet ") and begins_another(data):
            self._later += 1
            rest, self._said = self._said.chunks, self._found(self._sent, self._later)
            if self._later and self._said.chunks[:1] == [PREAMBLE]:
                del self._said.chunks[0]  # the process told what it is when it began
            self._said.chunks[:0] = rest

    def send_eof(self) -> None: ...

    def recv(self, timeout: float) -> bytes | None:
        while self._said.chunks:
            chunk = self._said.chunks.pop(0)
            if chunk:
                return chunk
        if self._said.silent:
            self._clock.sleep(timeout)
            return None
        return b""

    def recv_both(self, timeout: float) -> tuple[bytes, bytes] | None:
        err = self.recv_stderr()
        out = self.recv(timeout)
        return None if out is None and not err else (out or b"", err)

    def recv_stderr(self) -> bytes:
        said, self._said.stderr = self._said.stderr, b""
        return said

    def wait(self, timeout: float) -> int | None:
        return self._said.status

    def close(self) -> None: ...


class Liar(LocalTransport):
    """honest: by program, "mirror 2" for the second conversation with mirror. lie: (which of them, what is said in its
    place). times: how many conversations are that lie."""

    name = "liar"

    def __init__(self, honest: Mapping[str, Sequence[Part]], lie: tuple[str, Said], whom: str, times: int = 1) -> None:
        self.honest, self.lie, self.whom, self.left = honest, lie, whom, times
        self._counts: Counter[tuple[str, str]] = Counter()

    def connect(self, host: Host, cancel: Cancel) -> Any:
        liar = self

        class Session:
            address = None

            def __init__(self) -> None:
                self.host, self.clock = host, HandClock()

            def start(self, command: str) -> Channel:
                return Channel(lambda sent, later: liar.answer(host, sent, later), self.clock)

            def close(self) -> None: ...

        return Session()

    def answer(self, host: Host, sent: bytes, nth: int) -> Said:
        if not sent.startswith(b"fleet "):
            return Said([b"?"], 0)
        if found := re.search(rb"^fleet begins .*?key=(\w+) ", sent):
            said = self.lie[1] if host.name == self.whom else HONEST_COMMAND
            return Said(
                [chunk.replace(b"KEY", found[1]) for chunk in said.chunks],
                said.status,
                said.stderr.replace(b"KEY", found[1]),
                said.silent,
            )
        name = named(sent)[nth]
        self._counts[host.name, name] += 1
        later = f"{name} {self._counts[host.name, name]}"
        name = later if later in self.honest else name
        if host.name == self.whom and name == self.lie[0] and self.left > 0:
            self.left -= 1
            said = self.lie[1]
            return Said(list(said.chunks), said.status, said.stderr, said.silent)
        return plainly(as_rank(self.honest[name], 1 if host.name != "gpu1" else 0))

    def close(self) -> None: ...


def as_rank(parts: Sequence[Part], rank: int) -> list[Part]:
    """What the only node of a run said, as if it had another rank."""
    text = [("rank0.", f"rank{rank}."), ('"ranks": [0]', f'"ranks": [{rank}]')]
    text += [(f'"{name}": 0', f'"{name}": {rank}') for name in ("rank", "node_rank")]

    def of(value: Any) -> Any:
        said = json.dumps(value)
        for old, new in text:
            said = said.replace(old, new)
        return json.loads(said)

    return [(kind, stream, value if isinstance(value, bytes) else of(value)) for kind, stream, value in parts]


class Says:
    """A host whose every program says the same. works: before that come so many heartbeats that tell of work, one a
    second; beats: then come empty ones for ever; endless: output."""

    name, address = "says", None

    def __init__(
        self, *parts: dict[str, Any] | bytes, beats: bool = False, endless: bool = False, works: int = 0
    ) -> None:
        self.parts, self.beats, self.endless, self.works, self.clock = parts, beats, endless, works, HandClock()

    def connect(self, host: Host, cancel: Cancel) -> Any:
        self.host = host
        return self

    def start(self, command: str) -> Any:
        said = plainly(
            [("O" if isinstance(p, bytes) else "J", 0, p) for p in self.parts] + [("X", 0, {"exit_status": 0})]
        )
        said.chunks[1:1] = [frame("H", 0, b"%d" % n) for n in range(self.works)]
        return Saying(said, self.beats, self.endless, self.clock)

    def close(self) -> None: ...


class Saying:
    def __init__(self, said: Said, beats: bool, endless: bool, clock: HandClock) -> None:
        self._chunks: Iterator[bytes] = iter(said.chunks[: -1 if beats or endless else None])
        self._beats, self._endless, self._clock = beats, endless, clock

    def recv(self, timeout: float) -> bytes:
        data = next(self._chunks, None)
        if data is not None and data.startswith(b"H"):
            self._clock.sleep(1.0)
        if data is None and self._beats:
            self._clock.sleep(min(timeout, 1.0))
            return frame("H", 0, b"")
        return frame("O", 0, b"x" * 60_000) if data is None and self._endless else data or b""

    def send(self, data: bytes) -> None: ...
    def send_eof(self) -> None: ...
    def close(self) -> None: ...

    def recv_stderr(self) -> bytes:
        return b""

    def wait(self, timeout: float) -> int:
        return 0


class Recorder(LocalTransport):
    """Keeps what each program said in each conversation, of one host."""

    def __init__(self) -> None:
        self.said: dict[str, list[Part]] = {}

    def connect(self, host: Host, cancel: Cancel) -> Any:
        session = super().connect(host, cancel)
        start, keep = session.start, self.said

        def started(command: str) -> Any:
            channel = start(command)
            if command == command_line():  # no program's
                return channel
            send, recv, decoder = channel.send, channel.recv, Decoder(host.name)
            names: list[str] = []
            sent: list[str] = []

            def sending(data: bytes) -> None:
                if not sent and not names:
                    names.extend(named(data))
                if names and data not in beginnings() and (not sent or begins_another(data)):
                    name = names.pop(0)
                    count = sum(known.partition(" ")[0] == name for known in keep) + 1
                    sent[:] = [f"{name} {count}" if count > 1 else name]
                    keep[sent[0]] = []
                send(data)

            def receiving(timeout: float) -> Any:
                data = recv(timeout)
                for each in decoder.feed(data or b""):
                    if each.kind != b"H":
                        keep[sent[0]].append(
                            (each.kind.decode(), each.stream, each.payload if each.kind == b"O" else each.json())
                        )
                return data

            channel.send, channel.recv = sending, receiving  # type: ignore[method-assign, assignment]
            return channel

        session.start = started  # type: ignore[method-assign]
        return session
