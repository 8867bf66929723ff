"""A run of containers in this process: what leads it, in a thread and by a clock that the test moves, and containers
that dial it and report what they are given to."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fleet.answers.event import RunEvent
from fleet.answers.runs import RunSummary
from fleet.codec import from_json
from fleet.node.base.clock import CLOCK
from fleet.node.container.coordinator import BEAT_SECONDS, Coordinator
from fleet.node.container.dial import Line, dial
from fleet.node.container.options import read
from fleet.node.container.record import Kept, started_by, summary_of
from fleet.node.container.server import Server
from fleet.node.gang.elastic import gang_of
from fleet.node.gang.ends import run_end
from fleet.ops.run.kept.reader import NewEvents
from tests.clock import HandClock

RUN = "t-20261128-101112-00ff"
LIMIT = 60.0  # seconds that a busy machine may take for anything


def about(*words: str) -> dict[str, Any]:
    """Returns what a run's record holds of how it was started."""
    options = read([*words, "t.py"])
    options.name = "t"
    return started_by("aistation", options)


def nobodys_summary() -> dict[str, Any]:
    """Returns that of a run of no container, which is done."""
    return summary_of(RUN, gang_of({}, 0), {**run_end("done", "done", 0)}, [])


class Container:
    """One that takes part, as far as the one that leads sees it. begin: what it was sent to begin with."""

    def __init__(self, line: Line, clock: HandClock) -> None:
        self.line, self.clock = line, clock
        self.token = ""
        self.begin: dict[str, Any] = {}
        self.inbox = list[dict[str, Any]]()

    def wait(self, kind: str) -> Any:
        """Returns what the next message of the kind holds."""
        while True:
            for message in self.inbox:
                if kind in message:
                    self.inbox.remove(message)
                    return message[kind]
            received = self.line.receive(LIMIT)
            assert received is not None, f"no {kind} came, but {self.inbox}"
            self.inbox.append(received)

    def begun(self) -> Container:
        self.token = self.token or self.wait("token")
        self.begin = self.wait("start")
        return self

    def rank(self, number: int = 0, status: int | None = 0, ago: float = 0.0, **more: Any) -> None:
        """Reports the end of its rank of that local number, so many seconds ago."""
        now = self.clock.time()
        about = {"rank": self.begin["first"] + number, "local_rank": number, "status": status, "signal": None}
        about.update(time=now - ago, sent=now, attempt=0, begins=[0, 0], **more)
        self.line.send(event="rank", **about)

    def exit(self, code: int = 0, state: str = "exited", **more: Any) -> None:
        """Reports that its part is over: what its ranks' engine came to."""
        now = self.clock.time()
        self.line.send(event="status", state=state, engine_status=code, time=now, sent=now, began=now, left=[], **more)
        self.line.send(event="end")

    def end(self, *codes: int) -> None:
        """Reports all of its part: its ranks, 0 each if no codes are given, then itself."""
        for number, code in enumerate(codes or (0, 0)):
            self.rank(number, code)
        self.exit(max(codes, default=0))

    def verdict(self) -> dict[str, Any]:
        """Returns it, once it has come; the container leaves then."""
        found: dict[str, Any] = self.wait("verdict")
        self.line.send(event="over")
        self.line.close()
        return found


class Meeting:
    """What leads, and containers that dial it from this process. ranks: of each container."""

    def __init__(
        self, runs: Path, least: int, most: int | None = None, secret: bytes | None = None, **spec: Any
    ) -> None:
        self.runs, self.clock, self.secret = runs, HandClock(), secret
        self.about = {"job": "j", "least": least, "most": most or least}
        options = {"grace": 10.0, "stop_grace": 25.0, "node_timeout": 15.0, "max_restarts": 0, "stall_timeout": None}
        started = about()
        given = {"run": RUN, "runs": str(runs), "started": started, "engine": "torchrun", **options, **spec}
        self.server = Server(0, secret, self.clock)
        self.kept = Kept(str(runs), RUN, started)
        given.update(about=self.about, port=self.server.port)
        self.coordinator = Coordinator(given, self.server, self.kept, self.clock)
        self.parent, self.ours = os.pipe()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.lead, daemon=True)
        self.pool, self.lines = ThreadPoolExecutor(32), list[Line]()
        self.thread.start()

    def lead(self) -> None:
        try:
            self.coordinator.run(self.parent)
        except BaseException as error:
            self.error = error  # of the test, which looks at it

    def hello(self, hello: dict[str, Any]) -> Line:
        """Returns a connection on which that was sent."""
        line = dial("127.0.0.1", self.server.port, self.secret, hello, LIMIT, lambda text: None, CLOCK)
        self.lines.append(line)
        return line

    def dial(self, name: str, rank: int | None = None, **hello: Any) -> Container:
        """Returns a container that has a response to its hello; one whose place others took dials again."""
        until = time.monotonic() + LIMIT
        while True:
            line = self.hello({"host": name, "rank": rank, "each": 2, "about": self.about, **hello})
            made = Container(line, self.clock)
            try:
                made.inbox.append(line.receive(LIMIT) or {})
                return made
            except OSError:
                line.close()
                assert time.monotonic() < until

    def all(self, *names: str) -> list[Container]:
        """Returns them once they have begun, in the order of their ranks."""
        dialled = list(self.pool.map(self.dial, names, range(len(names))))
        return [each.begun() for each in dialled]

    def resume(self, container: Container) -> Container:
        """Returns it with another connection, as one whose own broke."""
        container.line = self.hello({"token": container.token})
        return container

    def pass_time(self, seconds: float, *living: Container) -> None:
        """Moves the clock, no faster than what leads looks at it. Each of the living sends its beats, and gets one."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += BEAT_SECONDS
            for each in living:
                each.line.send(beat=1)
            for each in living:
                each.wait("beat")

    def summary(self) -> dict[str, Any]:
        """Returns it once the run is over, as any head reads it."""
        self.rest()
        found: dict[str, Any] = json.loads((self.runs / RUN / "summary.json").read_text())
        from_json(RunSummary, found)
        assert found["exit_code"] == found["end"]["code"]
        lines = (self.runs / RUN / "events.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in lines] == self.kinds(), "an event that no head knows"
        return found

    def events(self) -> list[RunEvent]:
        return [event for notice in NewEvents(self.runs / RUN / "events.jsonl").read() for event in notice.happened]

    def rest(self) -> None:
        """Waits until nobody leads any more; time passes for who waits for others."""
        until = time.monotonic() + LIMIT
        while self.thread.is_alive() and time.monotonic() < until:
            self.clock.now += 1.0
            self.thread.join(0.05)
        assert self.error is None and not self.thread.is_alive(), self.error

    def kinds(self) -> list[str]:
        return [event.event for event in self.events()]

    def close(self) -> None:
        for line in self.lines:
            line.close()
        os.close(self.ours)
        self.rest()
        os.close(self.parent)
        self.pool.shutdown()
