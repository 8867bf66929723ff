"""Follows a run in the place of a fleet command that leaves it (`launch --detach`): logs, gang rule, summary.

`send_keeper` starts this module as a process of its own, see background.py. A run needs none: without one its nodes go
on, and `fleet attach` follows it again, from where its logs end here.
"""

from __future__ import annotations

import base64
import os
import pickle
import select
import sys
import time
from typing import TYPE_CHECKING

from fleet.errors import FleetError
from fleet.ops.launch.background import begin, leave, told
from fleet.ops.launch.folder import HANDOVER_SECONDS, RunFolder
from fleet.ops.launch.record import RunRecord
from fleet.runtime import Runtime
from fleet.transport.base import Transport

if TYPE_CHECKING:
    from fleet.ops.launch.attempts import Course, Ended

FOLLOWS = b"follows\n"


def send_keeper(
    record: RunRecord, folder: RunFolder, transport: Transport, course: Course | None = None, ended: Ended | None = None
) -> int:
    """Hand the run's folder over to it; its pid, once it follows. FleetError: nobody on this machine does. course: what
    it takes to start the run again. ended: see follow_run()."""
    # it holds values of variables, which are written nowhere: it goes to our own child, through a pipe
    packed = base64.b64encode(pickle.dumps((course, ended))).decode()
    hosts = (*record.hosts, *((*course.plan.hosts, *course.plan.spares) if course is not None else ()))
    process = begin("keeper", record, hosts, transport, course=packed)
    folder.release()
    if process is not None:
        assert process.stdout
        until, said = time.monotonic() + HANDOVER_SECONDS, b""
        while not said and select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            said = os.read(process.stdout.fileno(), len(FOLLOWS))
            if not said:
                break
        if said:
            return leave(process)
        process.kill()
        process.communicate()
    raise FleetError(
        f"nothing on this machine follows the run: {folder.path / 'keeper.log'} may say why; it goes on all the same",
        hint=f"fleet attach {record.run_id}",
        kind="not-followed",
    )


def main() -> None:
    """Follow it to its end."""
    from fleet.ops.launch.attempts import follow_run  # which sends keepers
    from fleet.ops.launch.loop import Run

    spec, record, _, transport = told()
    course, ended = pickle.loads(base64.b64decode(spec["course"]))
    folder = RunFolder(record.logs)
    if not folder.hold(HANDOVER_SECONDS, helper=True, restarts=course is not None and course.goes_on):
        sys.exit(f"another process follows {record.run_id} here")
    runtime = Runtime(transport)
    run = Run(record, folder, {}, runtime, course.plan if course else None) if ended is None else None
    os.write(1, FOLLOWS)
    os.dup2(2, 1)
    folder.event("kept", pid=os.getpid())
    follow_run(record, folder, {}, runtime, course, run, ended)
    transport.close()
