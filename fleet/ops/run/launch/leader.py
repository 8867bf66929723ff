"""The process that goes on with a run in the background, fleet-leader: it leads the run where there is something to
lead, or stops it on hosts that could not be reached, and brings what they have of its logs; then it ends.

follow/behind.py starts it. A run needs none: without one its nodes go on, and `fleet attach` leads it again, from where
its logs end here. It tries hosts that do not answer as long as the run's nodes go on by themselves, or for a week.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from typing import Any

from fleet.answers.run_events import Cleaned
from fleet.codec import from_json
from fleet.errors import FleetError
from fleet.events import silent
from fleet.model import Host
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.run_folder import myself
from fleet.node.gang.ends import BY_HAND
from fleet.ops.run.follow.behind import LEADS, patience
from fleet.ops.run.follow.follow import Follower, Following, Heard, pause_after
from fleet.ops.run.kept.documents import read_object
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.launch.attempts import follow_run, load_all
from fleet.ops.run.launch.course import Course, Ended
from fleet.ops.run.launch.loop import Run
from fleet.protocol.messages.run import Stopped, StopSpec, Verdict
from fleet.rules.launch import left
from fleet.runtime import Runtime
from fleet.transport import open_transport
from fleet.transport.base import Cancel, ConnectOptions, Transport
from fleet.transport.program import Program, last_word

STOP = "run.stop run.follow"  # in one process
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 2.0
FETCHING = threading.Lock()  # hosts of one run share its folder
LOOK_SECONDS = 1.0
SILENCE_SECONDS = 45.0  # a third of it, as it is a launch's --node-timeout, ends a connection


def main(spec: dict[str, Any]) -> None:
    """Does what the spec asks for, see behind.py."""
    hosts, hops = from_json(list[Host], spec["hosts"]), from_json(list[Host], spec["gateways"])
    record, options = from_json(RunRecord, spec["record"]), ConnectOptions(CONNECT_SECONDS)
    transport, folder = open_transport(spec["transport"], options, [*hosts, *hops]), RunFolder(record.logs)
    if spec["lock"] is not None:
        lead(record, folder, transport, spec)
    else:
        stop(record, folder, transport, hosts, spec)
    transport.close()


def lead(record: RunRecord, folder: RunFolder, transport: Transport, spec: dict[str, Any]) -> None:
    """Leads the run to its end, in the place of who has the folder's lock open, too."""
    course = from_json(Course | None, spec["course"])
    ended = from_json(Ended | None, spec["ended"])
    load_all(course)
    folder.take_over(spec["lock"])
    folder.lead(record.lease, detached=True)
    runtime = Runtime(transport)
    run = Run(record, folder, {}, runtime, course.plan if course else None) if ended is None else None
    os.write(1, LEADS)
    os.dup2(2, 1)
    follow_run(record, folder, {}, runtime, course, run, ended)
    folder.release()


def stop(record: RunRecord, folder: RunFolder, transport: Transport, hosts: list[Host], spec: dict[str, Any]) -> None:
    """Stops the run on all of these hosts at once; what came of it goes to the run's events."""
    until, complete = CLOCK.monotonic() + patience(record), list[str]()
    end, verdict = spec["end"], spec["verdict"]
    grace = record.stop_grace if end and end["by"] in BY_HAND else record.grace
    folder.say(stopper=myself(), stopping=[host.name for host in hosts])

    def work(host: Host) -> None:
        said, whole = clean(host, record.run_id, grace, transport, until, folder, record.attempt, end, verdict=verdict)
        if whole:
            complete.append(host.name)
        folder.event(Cleaned(complete=whole), host=host.name, message=f"{host.name}: {said}")

    threads = [threading.Thread(target=work, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    correct_summary(folder, complete, record.attempt)
    folder.say(stopper=None, stopping=[])


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
    """Tries until the run is stopped on this host; returns what came of it, one line, and whether its logs are
    complete."""
    reason = "the head gave this node up"
    spec: StopSpec = {"run": run, "grace": grace, "reason": reason, "end": end, "verdict": verdict}
    if end is None or end["by"] != "stop":  # which ends what may have followed, too
        spec["attempt"] = attempt
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
    """Follows a run that is over, from where its logs end here; returns whether every byte came. The folder is held no
    longer than that: while hosts are waited for, others may write there."""
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
    """Notes that the logs which these hosts have of an attempt are complete now. Who followed the run lets its folder
    go when it is written; who follows it again tells of them anew. That of a later attempt does not tell of them."""
    if folder.is_aside(attempt) or not folder.hold(HANDOVER_SECONDS):
        return
    try:
        if summary := read_object(folder.path / "summary.json"):
            summary["incomplete_logs"] = [name for name in summary["incomplete_logs"] if name not in complete]
            folder.write_json("summary.json", summary)
    finally:
        folder.release()
