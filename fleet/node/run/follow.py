"""Sends a run's files to the head from given offsets, reports how ranks and the run end, and renews the lease.

spec: {"run", "offsets": {name: bytes}, "attempt": n, "once": bool, "passive": bool, "heartbeat": s, "waits": bool,
"logs": bool}. The last six are optional. attempt: follow an earlier attempt. once: send what is there now, and end.
passive: do not renew the lease. heartbeat: seconds between heartbeats. waits: wait for the leader's verdict. logs:
false sends no logs. Files: rank<R>.out, rank<R>.err, node.log. Sends
    J {"event": "stream", "id", "name", "offset"}  once per file, then its bytes as O frames of that id, in order; again
        if bytes after the last offset were removed (--max-log)
    J {"event": "rank", "sent", ...}    rank<R>.json, whenever it is new; usually after that rank's output;
        "asked": true if the rank ended after a head had stopped the run
    J {"event": "status", "state": "running", "disk_full": bool}    whether output of ranks is lost now
    J {"event": "status", "sent", ...}  status.json, whenever it is new; state "lost": the supervisor
        was killed, or the folder removed
    J {"event": "clock", "up", "sent"}    regularly; the head estimates the clocks' offset from the message with the
        least delay; "up": how many ranks are alive here, in an elastic run
    J {"event": "verdict", "verdict"}   how the run ended, once that is decided
    J {"event": "superseded"}    a request was refused: a later leader has been here
    J {"event": "end", "sizes": {name: bytes}}  after the final status and the last byte, or at once; then X 0
    J {"event": "failed", "message", "hint"}    there is no such run here; then X 1
Control lines: {"op": "ping"} and {"op": "renew"} renew the lease; {"op": "detach"} removes it;
{"op": "stop", "grace", "reason", "end", "interrupt": whether ranks get SIGINT first} stops the run;
{"op": "renew-ranks"} ends its ranks, which an elastic engine then starts again;
{"op": "over"}: all ranks of all nodes have ended well; the supervisor then ends its engine at once;
{"op": "have", "sizes": {name: bytes}}: the leader has these parts of the logs, which --max-log may remove here. End of
file on stdin ends this program; the run goes on under its lease.
"""

import os
from contextlib import suppress

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.errors import Refused, failed
from fleet.node.base.run_folder import (
    disk_is_full,
    has_protocol,
    known_folder,
    live_supervisors,
    next_attempt_state,
    only,
    ranks_up,
    read_json,
    read_status,
    run_folder,
    stamp_of,
    verdict_of,
)
from fleet.node.base.types import Any, Callable, run, run_specs, values
from fleet.node.base.wire import frame, listen, send_exit, send_json, start, start_heartbeat
from fleet.node.run.heed import carry_out, is_led_by, trimmed
from fleet.protocol.frames import HEARTBEAT_SECONDS, OUTPUT
from fleet.protocol.state import FINAL, SPEC, STATUS, is_log

CHUNK = 65536
CHUNKS_A_TURN = 16
BUSY_SECONDS, IDLE_SECONDS, AWAKE_SECONDS, LOOK_SECONDS = 0.01, 0.04, 1.0, 1.0
OWNER_CHECK_SECONDS, DISK_CHECK_SECONDS = 0.5, 2.0
VERDICT_SECONDS = 5.0  # after the end of this node's part, until the leader has sent a verdict or another attempt began
FIRST_CLOCK_SECONDS, CLOCK_SECONDS, ELASTIC_CLOCK_SECONDS = 0.5, 15.0, 4.0


class Stream:
    """Sends one growing file. begins: returns the offset of the first byte that was not removed. It is called after
    each read, as removed bytes read as zeros."""

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
        """Sends new bytes, up to 1 MiB, so that one file with much output does not delay the others. Returns whether
        there were any."""
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
    """Sends the contents and events of a run's folder, by calls of `say`. once: ends when all of it has been sent."""

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
            up = ranks_up(self.folder) if is_time and self.elastic else None  # before records of ended ranks are read
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
        """Sends the verdict if it is there. Returns whether to wait for it, or for another attempt."""
        verdict, last = verdict_of(self.folder) if self.ours else None, run_folder(self.run)
        if verdict:
            self.say({"event": "verdict", "verdict": verdict})
        if verdict or not self.waits or last is None or not os.path.samefile(last, self.folder):
            return False
        return (
            abs(self.clock.time() - self.status.get("time", 0.0)) < VERDICT_SECONDS
            or next_attempt_state(last) is not None
        )

    def is_due(self, now: float) -> bool:
        """Returns whether files may be new or replaced, by the folder's mtime. As that may be coarse, it also returns
        True for some time after a change."""
        folder_time = os.stat(self.folder).st_mtime_ns
        if folder_time != self.folder_time:
            self.folder_time, self.changed = folder_time, now
        if now - self.changed >= AWAKE_SECONDS and now - self.looked < LOOK_SECONDS:
            return False
        self.looked = now
        return True

    def look(self) -> "list[dict[str, Any]]":
        """Opens new files. Returns the events of new records: of ranks in the order of their ends, then of the run."""
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
        for event in events:  # a stop is recorded before any rank gets a signal
            if event["event"] == "rank" and began is not None and event.get("time", 0.0) >= began:
                event["asked"] = True
        return sorted(events, key=lambda event: (event["event"] == "status", event.get("time", 0.0)))

    def begins(self, name: str) -> int:
        return trimmed(self.folder).get(name, 0) if self.trims else 0

    def renewed(self, name: str, path: str) -> "dict[str, Any]":
        """Returns the object in a file if it was replaced since the last call, otherwise {}."""
        stamp = stamp_of(path)
        if stamp in (None, self.seen.get(name)):
            return {}
        self.seen[name] = stamp
        return read_json(path)

    def check_owners(self, now: float) -> None:
        """Ends a run whose supervisor and guardian were both killed, as no other process would. Does the same if the
        run's folder was removed, because supervisor and guardian read stop requests there."""
        if now - self.owners_checked < OWNER_CHECK_SECONDS or self.status.get("state") in FINAL:
            return
        self.owners_checked = now
        if live_supervisors(self.folder) or read_status(self.folder).get("state") in FINAL:
            return
        from fleet.node.run.start.ending import end_unsupervised  # rarely needed, and long

        self.status = end_unsupervised(self.run, self.folder)
        self.seen[STATUS] = None
        if read_status(self.folder).get("state") not in FINAL:
            self.say(dict(self.status, event="status", sent=self.clock.time()))

    def check_disk(self, now: float) -> None:
        """Reports a full disk once, and again when there is space. Output of ranks is lost meanwhile, which they may
        ignore."""
        if now - self.disk_checked < DISK_CHECK_SECONDS or self.status.get("state") in FINAL:
            return
        self.disk_checked = now
        if self.disk_full != disk_is_full(self.folder):
            self.disk_full = not self.disk_full
            self.say({"event": "status", "state": "running", "disk_full": self.disk_full})

    def send_time(self, now: float, up: "int | None") -> None:
        """Sends the node's time, by which the head orders the events of several nodes. Sends it again and again, as a
        busy node or head delays some of the messages."""
        self.clock_due, self.clock_pause = (
            now + self.clock_pause,
            min(ELASTIC_CLOCK_SECONDS if self.elastic else CLOCK_SECONDS, 2 * self.clock_pause),
        )
        self.say({"event": "clock", "up": up, "sent": self.clock.time()})


def opened(run: str, attempt: "int | None") -> str:
    """Returns a path of an attempt's folder that stays open, so that it is valid even if another attempt moves the
    folder. Raises Refused or OSError."""
    return "/proc/self/fd/%d" % os.open(known_folder(run, attempt), os.O_RDONLY | os.O_DIRECTORY)


def close(folder: str) -> None:
    """Closes the folder that opened() returned."""
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
        if not carry_out(spec["run"], folder, message, bool(spec.get("passive")), term):
            send_json({"event": "superseded"})

    listen(obey, lambda: os._exit(0))
    Follower(spec, folder).follow()
    return 0


def main() -> None:
    try:
        send_exit(follow())
    except OSError as error:
        with suppress(OSError):  # usually the head is gone, and receives nothing; the run goes on
            send_json(unread(error))
            send_exit(1)
