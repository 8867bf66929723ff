"""Stops a run on hosts that could not be reached when it ended, and brings the rest of their logs; outlives the fleet
command: as long as the run's nodes go on by themselves, or for a week.

`send_janitor` starts this module as a process of its own, see background.py. It tries each host again and again
until the run is stopped there or the time is over: by then the node's own lease has ended it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

from fleet.answers.run_events import Cleaned
from fleet.errors import FleetError
from fleet.events import silent
from fleet.model import Host
from fleet.node.base.clock import CLOCK, Clock
from fleet.ops.run.end.ends import BY_HAND
from fleet.ops.run.follow.background import begin, leave, unpacked
from fleet.ops.run.follow.follow import Follower, Following, Heard, pause_after
from fleet.ops.run.kept.documents import read_object
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import Stopped, StopSpec, Verdict
from fleet.rules.launch import left
from fleet.transport.base import Cancel, Transport
from fleet.transport.program import Program, last_word

STOP = "run.stop run.follow"  # in one process
MARGIN_SECONDS = 60.0
NO_LEASE_SECONDS = 7 * 86400.0  # nothing else ends a run that needs no head
RETRY_SECONDS = 2.0
FETCHING = threading.Lock()  # hosts of one run share its folder
LOOK_SECONDS = 1.0
SILENCE_SECONDS = 45.0  # a third of it, as it is a launch's --node-timeout, ends a connection


def patience(record: RunRecord) -> float:
    """For how many seconds it tries."""
    return NO_LEASE_SECONDS if record.lease is None else record.lease + record.stop_grace + MARGIN_SECONDS


def send_janitor(
    record: RunRecord,
    hosts: Sequence[Host],
    transport: Transport,
    end: Verdict | None = None,
    verdict: Verdict | None = None,
) -> int | None:
    """Start it; its pid, or None when it cannot be started. end: why the run was stopped. verdict: on it."""
    process = begin("follow.janitor", record, hosts, transport, seconds=patience(record), end=end, verdict=verdict)
    return leave(process) if process else None


def clean(
    host: Host,
    run: str,
    grace: float,
    transport: Transport,
    until: float,
    folder: RunFolder,
    attempt: int = 0,
    end: Verdict | None = None,
    clock: Clock = CLOCK,
    verdict: Verdict | None = None,
) -> tuple[str, bool]:
    """Try until the run is stopped on this host; what came of it, one line, and whether its logs are complete."""
    reason = "the head gave this node up"
    spec: StopSpec = {"run": run, "grace": grace, "reason": reason, "end": end, "attempt": attempt, "verdict": verdict}
    last, began = "never tried", clock.monotonic()
    while clock.monotonic() < until and not read_object(folder.path / "summary.json").get("forgotten"):
        try:
            session = transport.connect(host, Cancel())
            try:
                program = Program(session, STOP, spec)
                answer = last_word(program, Stopped, timeout=grace + 30)
            except FleetError:
                session.close()
                raise
            complete = fetch(run, program, transport, until, folder, attempt, clock)
            return (
                f"stopped; processes left: {', '.join(left(answer)) or 'none'}; its logs are "
                f"{'complete' if complete else 'not complete'} here"
            ), complete
        except FleetError as error:
            last = str(error)
        clock.sleep(pause_after(clock.monotonic() - began, RETRY_SECONDS))
    return f"given up: {last}", False


def fetch(
    run: str,
    program: Program,
    transport: Transport,
    until: float,
    folder: RunFolder,
    attempt: int,
    clock: Clock = CLOCK,
) -> bool:
    """Follow a run that is over, from where its logs end here; whether every byte came. The folder is held no longer
    than that: while hosts are waited for, others may write there."""
    heard: list[Heard] = []
    with FETCHING:
        # who gave this host up may have others to wait for; who follows a later attempt writes to no file of this one
        while not folder.hold(LOOK_SECONDS) and not folder.is_aside(attempt):
            if clock.monotonic() > until:
                program.session.close()
                return False
        try:
            logs = folder.node(program.host.name, attempt)
            how = Following(run, transport, heard.append, silent, SILENCE_SECONDS, attempt=attempt, clock=clock)
            follower = Follower(program.host, logs, how, program)
            follower.start()
            while follower.is_alive():
                follower.join(LOOK_SECONDS)
                now, since = clock.monotonic(), follower.silent_since
                if now > until or since is not None and now - since > SILENCE_SECONDS:
                    follower.give_up()  # it went again: nobody else waits for it
        finally:
            folder.release()
    return any(word.data.complete for word in heard if word.what == "over")


def correct_summary(folder: RunFolder, complete: Collection[str], attempt: int) -> None:
    """The logs that these hosts have of an attempt are complete now. Who followed the run lets its folder go when it
    is written; who follows it again tells of them anew. That of a later attempt does not tell of them."""
    if folder.is_aside(attempt) or not folder.hold(HANDOVER_SECONDS):
        return
    try:
        if summary := read_object(folder.path / "summary.json"):
            summary["incomplete_logs"] = [name for name in summary["incomplete_logs"] if name not in complete]
            folder.write_json("summary.json", summary)
    finally:
        folder.release()


def main(spec: dict[str, Any]) -> None:
    """Work, write what came of it to the run's events.jsonl."""
    record, hosts, transport = unpacked(spec)
    folder = RunFolder(record.logs)
    until = CLOCK.monotonic() + float(spec["seconds"])
    complete: list[str] = []
    end = spec["end"]
    grace = record.stop_grace if end and end["by"] in BY_HAND else record.grace

    def work(host: Host) -> None:
        verdict, attempt = spec["verdict"], record.attempt
        said, whole = clean(host, record.run_id, grace, transport, until, folder, attempt, end, verdict=verdict)
        if whole:
            complete.append(host.name)
        folder.event(Cleaned(complete=whole), host=host.name, message=f"{host.name}: {said}")

    threads = [threading.Thread(target=work, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    transport.close()
    correct_summary(folder, complete, record.attempt)
