"""Hands a run that is left to its keeper (keeper.py), a process that follows it from then on."""

from __future__ import annotations

import os
import select
import time
from importlib import import_module

from fleet.codec import to_json
from fleet.engines import engine
from fleet.errors import FleetError
from fleet.ops.run.follow.background import begin, leave
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.launch.course import Course, Ended
from fleet.transport.base import Transport
from fleet.transport.program import read_all

FOLLOWS = b"follows\n"
BEGIN_SECONDS = 120.0  # in which it does, on a busy machine; one that ends before that is not waited for


def send_keeper(
    record: RunRecord, folder: RunFolder, transport: Transport, course: Course | None = None, ended: Ended | None = None
) -> int:
    """Hand the run's folder over to it, with the lock, so that nobody takes that for a run which is over or was left;
    its pid, once it follows. FleetError: nobody on this machine does. course: what it takes to start the run again.
    ended: see follow_run()."""
    # it holds values of variables, which are written nowhere: it goes to our own child, through a pipe
    more = {"course": to_json(course), "ended": to_json(ended)}
    hosts = (*record.hosts, *((*course.plan.hosts, *course.plan.spares) if course is not None else ()))
    process = begin("launch.keeper", record, hosts, transport, folder.lock, **more)
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
