"""Follows a run in the place of a fleet command that leaves it (`launch --detach`): logs, gang rule, summary.

`send_keeper` starts this module as a process of its own, see background.py. A run needs none: without one its nodes go
on, and `fleet attach` follows it again, from where its logs end here.
"""

from __future__ import annotations

import os
import select
import time
from importlib import import_module
from typing import TYPE_CHECKING

from fleet.codec import from_json, to_json
from fleet.engines import engine
from fleet.errors import FleetError
from fleet.ops.launch.background import begin, leave, told
from fleet.ops.launch.folder import RunFolder
from fleet.ops.launch.record import RunRecord
from fleet.runtime import Runtime
from fleet.transport.base import Transport
from fleet.transport.program import read_all

if TYPE_CHECKING:
    from fleet.ops.launch.course import Course, Ended

FOLLOWS = b"follows\n"
VERSION = 1  # of what it is sent
BEGIN_SECONDS = 120.0  # in which it does, on a busy machine; one that ends before that is not waited for


def send_keeper(
    record: RunRecord, folder: RunFolder, transport: Transport, course: Course | None = None, ended: Ended | None = None
) -> int:
    """Hand the run's folder over to it, with the lock, so that nobody takes that for a run which is over or was left;
    its pid, once it follows. FleetError: nobody on this machine does. course: what it takes to start the run again.
    ended: see follow_run()."""
    # it holds values of variables, which are written nowhere: it goes to our own child, through a pipe
    more = {"version": VERSION, "course": to_json(course), "ended": to_json(ended)}
    hosts = (*record.hosts, *((*course.plan.hosts, *course.plan.spares) if course is not None else ()))
    process = begin("keeper", record, hosts, transport, folder.lock, **more)
    folder.let_go()
    if process is not None:
        assert process.stdout
        until, said = time.monotonic() + BEGIN_SECONDS, b""
        while not said and select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            said = os.read(process.stdout.fileno(), len(FOLLOWS))
            if not said:
                break
        if said:
            return leave(process)
        with process:
            process.kill()
    raise FleetError(
        f"nothing on this machine follows the run: {folder.path / 'keeper.log'} may say why; it goes on all the same",
        hint=f"fleet attach {record.run_id}",
        kind="not-followed",
    )


def load_all(course: Course | None) -> None:
    """What it takes to lead the run to its end: fleet may be another one by then."""
    read_all()
    if course is not None:
        engine(course.plan.job.engine)
        if course.plan.request.sync:
            import_module("fleet.ops.sync")


def main() -> None:
    """Follow it to its end."""
    from fleet.ops.launch.attempts import follow_run  # which sends keepers
    from fleet.ops.launch.course import Course, Ended
    from fleet.ops.launch.loop import Run

    spec, record, _, transport = told()
    if spec.get("version") != VERSION:
        raise SystemExit("fleet was replaced by another version while this run was left: 'fleet attach' follows it")
    course, ended = from_json(Course | None, spec["course"]), from_json(Ended | None, spec["ended"])
    load_all(course)
    folder = RunFolder(record.logs)
    folder.take_over(spec["lock"], helper=True)
    runtime = Runtime(transport)
    run = Run(record, folder, {}, runtime, course.plan if course else None) if ended is None else None
    os.write(1, FOLLOWS)
    os.dup2(2, 1)
    folder.event("kept", pid=os.getpid())
    follow_run(record, folder, {}, runtime, course, run, ended)
    folder.release()
    transport.close()
