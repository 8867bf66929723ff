"""Nodes that answer by a script: messages of the head in, messages of the node half out, without a process."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.protocol.state import PROTOCOL
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport
from tests.clock import HandClock
from tests.liar import Channel, Part, Said, beginnings, named, plainly

Message = dict[str, Any] | tuple[int, bytes]  # the latter: bytes of a stream
Spec = dict[str, Any]
Answer = Sequence[Message] | Callable[[Spec], Sequence[Message]]
Answers = Mapping[str, Answer] | FleetError
STOPPED: Message = {"event": "stopped", "left": [], "was": "running"}


def part(run: str, state: str = "running", *, node_rank: int = 0, about: Spec | None = None, **more: Any) -> Spec:
    """Returns what a node reports of a run with one rank there. more: of its status; alive: its supervisor."""
    alive, verdict = more.pop("alive", True), more.pop("verdict", None)
    return {
        "run": run,
        "protocol": PROTOCOL,
        "attempt": (about or {}).get("attempt", 0),
        "host": "n",
        "node_rank": node_rank,
        "ranks": [node_rank],
        "devices": None,
        "cwd": None,
        "about": about,
        "lease": None,
        "grace": 1.0,
        "node_timeout": 15.0,
        "status": {"state": state, **more},
        "alive": alive,
        "up": int(state == "running"),
        "ended": [],
        "silent": None,
        "last": "",
        "unheard": None,
        "term": 0,
        "verdict": verdict,
    }


def about(started: float = 1.0, nnodes: int = 1, **more: Any) -> Spec:
    """Returns what a run reports of itself."""
    size = {"nnodes": nnodes, "world_size": nnodes}
    who = {"engine": "command", "script": "t", "owner": "ada@head", "master": "h:1", "hosts": {}}
    counts = {"attempt": 0, "max_restarts": 0, "spares": 0, "least": 0, "max_log": 0}
    return {"started": started, **size, **who, **counts, "stall_timeout": None, "stop_grace": 10.0, **more}


def lists(*parts: Spec) -> list[Message]:
    """Returns a node's answer to the question which runs it has."""
    return [{"event": "runs", "runs": list(parts)}]


def ends(rank: int, said: bytes = b"", status: int = 0, **more: Any) -> list[Message]:
    """Returns what a node sends to who follows a run whose only rank there ends so. more: of the rank's end."""
    end = {"event": "rank", "rank": rank, "local_rank": 0, "status": status, "signal": None, "time": 10.0, **more}
    return [
        {"event": "stream", "id": 1, "name": f"rank{rank}.out", "offset": 0},
        (1, said),
        end,
        {"event": "status", "state": "exited", "engine_status": status, "signal": None, "time": 10.0},
        {"event": "end", "sizes": {f"rank{rank}.out": len(said)}},
    ]


def well(*follows: Sequence[Message], **other: Any) -> dict[str, Answer]:
    """Returns the answers of a node on which a run of any program can start. follows: what it sends to who follows the
    run, the first time, the second, ... other: facts of its own."""
    sent = [*follows]
    script = {"path": "/t", "exists": True, "executable": True, "sha256": "0" * 64}
    return {
        "probe": [{"facts": {"script": script, **other}}],
        "supervise": [{"event": "started", "pid": 1, "dir": "/r"}],
        "follow": lambda spec: sent.pop(0),
        "ready": [{"event": "ready", "left": [], "port": 29500, "forbidden": False}],
        "stop": [STOPPED],
    }


class Scripted(LocalTransport):
    """answers: by host and program ("list_runs") the messages that it sends, or what makes them of the spec; an error:
    of connecting to it. A host that is not there refuses the connection. refused: by host, which of its connections
    (0, 1, ...) is. `sent` has all specs, as (host, program, spec)."""

    name = "scripted"

    def __init__(self, answers: Mapping[str, Answers], refused: Mapping[str, int] | None = None) -> None:
        self.answers, self.sent = dict(answers), list[tuple[str, str, Spec]]()
        self._refused, self._connections = refused or {}, Counter[str]()

    def connect(self, host: Host, cancel: Cancel) -> Any:
        number = self._connections[host.name]
        self._connections[host.name] += 1
        if host.name not in self.answers or self._refused.get(host.name) == number:
            raise ConnectError("no answer", host=host.name, hint="is it up?")
        if isinstance(error := self.answers[host.name], FleetError):
            error.host = host.name
            raise error
        return _Session(self, host)

    def answer(self, host: Host, program: str, spec: Spec) -> Said:
        self.sent.append((host.name, program, spec))
        if host.name not in self.answers:
            return Said([])
        answers = self.answers[host.name]
        assert not isinstance(answers, FleetError)
        answer = answers[program]
        messages = answer(spec) if callable(answer) else answer
        parts: list[Part] = [("J", 0, it) if isinstance(it, dict) else ("O", *it) for it in messages]
        return plainly([*parts, ("X", 0, {"exit_status": 0})])

    def go(self, host: str) -> None:
        """Has a host refuse connections from now on, and end those that it has."""
        del self.answers[host]

    def close(self) -> None: ...


class _Session:
    address = None

    def __init__(self, scripted: Scripted, host: Host) -> None:
        self.host, self._scripted = host, scripted

    def start(self, command: str) -> Channel:
        return _Channel(self._scripted, self.host)

    def close(self) -> None: ...


class _Channel(Channel):
    def __init__(self, scripted: Scripted, host: Host) -> None:
        super().__init__(lambda sent, later: scripted.answer(host, named(sent)[later], self._spec), HandClock())
        self._spec: Spec = {}

    def send(self, data: bytes) -> None:
        line = next((data[len(text) :] for text in beginnings() if data.startswith(text)), data)
        with contextlib.suppress(ValueError):
            self._spec = json.loads(line)
        super().send(data)
