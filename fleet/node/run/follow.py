"""Streams a run's files to the head from given offsets, reports how ranks and the run end, renews the lease.

spec: {"run", "offsets": {name: bytes}, "attempt": n, "once": bool, "passive": bool, "heartbeat": s, "waits": bool,
"logs": bool}. The last six are optional: of an earlier attempt; send what is there now; renew nothing; how often to
report that this node lives; wait for the leader's verdict; send no logs. Files: rank<R>.out, rank<R>.err,
node.log. Sends
    J {"event": "stream", "id", "name", "offset"}  once a file, then its bytes as O frames of that id, in order; again
        where bytes before the offset are no longer there (--max-log)
    J {"event": "rank", "sent", ...}    rank<R>.json, whenever it is new; after what that rank wrote, as a rule;
        "asked": true where it ended after a head had the run stopped
    J {"event": "status", "state": "running", "disk_full": bool}    what ranks write is lost, or is no more
    J {"event": "status", "sent", ...}  status.json, whenever it is new; state "lost": the supervisor
        was killed, or the folder removed
    J {"event": "clock", "up", "sent"}    now and then: the fastest of these shows how far two clocks are apart;
        "up": of an elastic run, how many ranks live here
    J {"event": "verdict", "verdict"}   how the run ended, once that is decided
    J {"event": "superseded"}    a request was refused: a later leader has been here
    J {"event": "end", "sizes": {name: bytes}}  after the final status and the last byte, or at once; then X 0
    J {"event": "failed", "message", "hint"}    there is no such run here; then X 1
Control lines: {"op": "ping"} or {"op": "renew"} renews the lease, {"op": "detach"} does away with it,
{"op": "stop", "grace", "reason", "end", "interrupt": whether ranks get SIGINT first} stops the run,
{"op": "renew-ranks"} ends its ranks, which an elastic engine then starts again,
{"op": "over"} reports that every rank on every node has ended well, so that no node waits for an engine,
{"op": "have", "sizes": {name: bytes}} what the leader has of the logs: with --max-log the rest may go. End of file on
stdin ends this program; the run goes on under its lease.
"""

import os
from contextlib import suppress

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.errors import Refused, failed
from fleet.node.base.run_folder import (
    awaited,
    disk_is_full,
    has_protocol,
    known_folder,
    only,
    owners,
    ranks_up,
    read_json,
    read_status,
    run_folder,
    stamp_of,
    verdict_of,
)
from fleet.node.base.types import Any, Callable, run, run_specs, values
from fleet.node.base.wire import frame, listen, send_exit, send_json, start, start_heartbeat
from fleet.node.run.heed import heed, is_led_by, trimmed
from fleet.protocol.frames import HEARTBEAT_SECONDS, OUTPUT
from fleet.protocol.state import FINAL, SPEC, STATUS, is_log

CHUNK = 65536
CHUNKS_A_TURN = 16
BUSY_SECONDS, IDLE_SECONDS, AWAKE_SECONDS, LOOK_SECONDS = 0.01, 0.04, 1.0, 1.0
OWNER_CHECK_SECONDS, DISK_CHECK_SECONDS = 0.5, 2.0
VERDICT_SECONDS = 5.0  # after the end here, in which the leader reports how the run ended, or starts it again
FIRST_CLOCK_SECONDS, CLOCK_SECONDS, ELASTIC_CLOCK_SECONDS = 0.5, 15.0, 4.0


class Stream:
    """One growing file. begins: where what is left of it begins; checked after a read: what is gone reads as zeros."""

    def __init__(
        self,
        path: str,
        name: str,
        number: int,
        offset: "int | str | None",
        begins: "Callable[[str], int]",
        say: "Callable[[run.Followed], None]",
    ) -> None:
        self.name, self.number, self.begins, self.say = name, number, begins, say
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.offset = min(offset, os.fstat(self.fd).st_size) if isinstance(offset, int) and offset > 0 else 0
        say({"event": "stream", "id": number, "name": name, "offset": self.offset})

    def turn(self) -> bool:
        """Send what is there, up to 1 MiB, so that one loud file does not silence the others; True if any."""
        sent = False
        for _ in range(CHUNKS_A_TURN):
            data = os.pread(self.fd, CHUNK, self.offset)
            begins = self.begins(self.name) if data else 0
            if begins > self.offset:
                self.offset = begins
                self.say({"event": "stream", "id": self.number, "name": self.name, "offset": begins})
            elif data:
                frame(OUTPUT, data, self.number)
                self.offset += len(data)
                sent = True
            if len(data) < CHUNK:
                break
        return sent


class Follower:
    """Sends what a run's folder has, by calls of `say`. once: it ends when all that is there has been sent."""

    def __init__(
        self, request: "run_specs.FollowSpec", folder: str, clock: Clock = CLOCK, say: Any = send_json
    ) -> None:
        self.say = say
        self.run, self.folder, self.offsets, self.clock = request["run"], folder, request.get("offsets") or {}, clock
        self.once, self.waits, self.logs = request.get("once"), request.get("waits"), request.get("logs", True)
        self.streams: dict[str, Stream] = {}
        self.seen: dict[str, tuple[int, int] | None] = {}
        self.status: dict[str, Any] = {}
        self.owners_checked = self.disk_checked = self.looked = self.changed = clock.monotonic()
        self.folder_time = 0
        self.disk_full = False
        spec = read_json(os.path.join(folder, SPEC))
        self.ours, about = has_protocol(spec), spec.get("about") or {}
        self.elastic, self.trims = bool(about.get("least")), bool(about.get("max_log"))
        self.clock_due, self.clock_pause = self.looked, FIRST_CLOCK_SECONDS

    def follow(self) -> None:
        last = self.clock.monotonic()
        while True:
            over = self.once or self.status.get("state") in FINAL
            now = self.clock.monotonic()
            is_time = now >= self.clock_due
            up = ranks_up(self.folder) if is_time and self.elastic else None  # before the records of those that ended
            found = self.look() if over or self.is_due(now) or up is not None else []
            moved = False
            for stream in self.streams.values():
                moved = stream.turn() or moved
            for message in found:
                self.say(dict(message, sent=self.clock.time()))
            if over and not moved and not found and not self.is_open():
                break
            now = self.clock.monotonic()
            self.check_disk(now)
            if is_time:
                self.send_time(now, up)
            if moved or found:
                last = now
            else:
                self.check_owners(now)
                self.clock.sleep(BUSY_SECONDS if now - last < AWAKE_SECONDS else IDLE_SECONDS)
        self.say({"event": "end", "sizes": {s.name: s.offset for s in self.streams.values()}})

    def is_open(self) -> bool:
        """Sends the verdict once it is there; returns whether that, or another attempt, is waited for."""
        verdict, last = verdict_of(self.folder) if self.ours else None, run_folder(self.run)
        if verdict:
            self.say({"event": "verdict", "verdict": verdict})
        if verdict or not self.waits or last is None or not os.path.samefile(last, self.folder):
            return False
        return abs(self.clock.time() - self.status.get("time", 0.0)) < VERDICT_SECONDS or awaited(last) is not None

    def is_due(self, now: float) -> bool:
        """Is true where files may have come or been replaced: that renews the folder, whose clock may be a coarse
        one."""
        folder_time = os.stat(self.folder).st_mtime_ns
        if folder_time != self.folder_time:
            self.folder_time, self.changed = folder_time, now
        if now - self.changed >= AWAKE_SECONDS and now - self.looked < LOOK_SECONDS:
            return False
        self.looked = now
        return True

    def look(self) -> "list[dict[str, Any]]":
        """Open new files; returns the events of records that are new, of ranks as they ended, then the run's."""
        events = []
        for name in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, name)
            if is_log(name):
                if self.logs and name not in self.streams:
                    with suppress(FileNotFoundError):  # removed since it was listed: check_owners() reports it
                        offset, number = self.offsets.get(name), len(self.streams)
                        self.streams[name] = Stream(path, name, number, offset, self.begins, self.say)
            elif name == STATUS or self.ours and name.startswith("rank") and name.endswith(".json"):
                record = self.renewed(name, path)
                record = record if self.ours else only(record, "state")
                if record and name == STATUS:
                    self.status = record
                if record:
                    events.append(dict(record, event="status" if name == STATUS else "rank"))
        began = self.status.get("began") if self.status.get("cause") == "asked" else None
        for event in events:  # a stop is on record before a rank hears of it
            if event["event"] == "rank" and began is not None and event.get("time", 0.0) >= began:
                event["asked"] = True
        return sorted(events, key=lambda event: (event["event"] == "status", event.get("time", 0.0)))

    def begins(self, name: str) -> int:
        return trimmed(self.folder).get(name, 0) if self.trims else 0

    def renewed(self, name: str, path: str) -> "dict[str, Any]":
        """The object in a replaced file, {} when it is the one that was seen."""
        stamp = stamp_of(path)
        if stamp in (None, self.seen.get(name)):
            return {}
        self.seen[name] = stamp
        return read_json(path)

    def check_owners(self, now: float) -> None:
        """A run whose supervisor and guardian were both killed has no process left that ends it: do that here. Where
        its folder was removed, they receive no stop any more."""
        if now - self.owners_checked < OWNER_CHECK_SECONDS or self.status.get("state") in FINAL:
            return
        self.owners_checked = now
        if owners(self.folder) or read_status(self.folder).get("state") in FINAL:
            return
        from fleet.node.run.start.ending import bury_unkept  # rarely needed, and long

        self.status = bury_unkept(self.run, self.folder)
        self.seen[STATUS] = None
        if read_status(self.folder).get("state") not in FINAL:
            self.say(dict(self.status, event="status", sent=self.clock.time()))

    def check_disk(self, now: float) -> None:
        """Reports a full disk, once, and when there is room again. What ranks cannot write is lost, and they may not
        care."""
        if now - self.disk_checked < DISK_CHECK_SECONDS or self.status.get("state") in FINAL:
            return
        self.disk_checked = now
        if self.disk_full != disk_is_full(self.folder):
            self.disk_full = not self.disk_full
            self.say({"event": "status", "state": "running", "disk_full": self.disk_full})

    def send_time(self, now: float, up: "int | None") -> None:
        """Sends the node's time: it orders the ends of ranks on two nodes, even where this node or the head is busy."""
        self.clock_due, self.clock_pause = (
            now + self.clock_pause,
            min(ELASTIC_CLOCK_SECONDS if self.elastic else CLOCK_SECONDS, 2 * self.clock_pause),
        )
        self.say({"event": "clock", "up": up, "sent": self.clock.time()})


def opened(run: str, attempt: "int | None") -> str:
    """Returns the folder of an attempt, held open: what another one sets aside is still found. Refused; OSError."""
    return "/proc/self/fd/%d" % os.open(known_folder(run, attempt), os.O_RDONLY | os.O_DIRECTORY)


def close(folder: str) -> None:
    """Closes what opened() returned."""
    os.close(int(os.path.basename(folder)))


def unread(error: OSError) -> "values.Failed":
    """Returns the message that the folder cannot be read."""
    return failed(Refused("cannot read the run's folder: %s" % error))


def follow() -> int:
    spec: run_specs.FollowSpec = start(heartbeat=False)
    start_heartbeat(spec.get("heartbeat", HEARTBEAT_SECONDS))
    try:
        folder, term = opened(spec["run"], spec.get("attempt")), spec.get("term", 0)
    except Refused as error:
        send_json(failed(error))
        return 1
    if term:
        is_led_by(folder, term)

    def obey(message: "dict[str, Any]") -> None:
        if not heed(spec["run"], folder, message, bool(spec.get("passive")), term):
            send_json({"event": "superseded"})

    listen(obey, lambda: os._exit(0))
    Follower(spec, folder).follow()
    return 0


def main() -> None:
    try:
        send_exit(follow())
    except OSError as error:
        with suppress(OSError):  # mostly the head is gone, and this goes nowhere; the run goes on
            send_json(unread(error))
            send_exit(1)
