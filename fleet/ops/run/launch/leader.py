"""The process that leads a run on in the background, fleet-leader, in the place of the one that led it before.

follow/behind.py starts it. A run needs none: without one its nodes go on, and `fleet attach` leads it again, from
where its logs end here.
"""

from __future__ import annotations

import os
from typing import Any

from fleet.codec import from_json
from fleet.ops.run.follow.behind import LEADS, opened
from fleet.ops.run.launch.attempts import follow_run, load_all
from fleet.ops.run.launch.course import Course, Ended
from fleet.ops.run.launch.loop import Run
from fleet.runtime import Runtime


def lead(spec: dict[str, Any]) -> None:
    """Leads the run to its end, in the place of who has the folder's lock open, too."""
    record, folder, transport, _ = opened(spec)
    course = from_json(Course | None, spec["course"])
    ended = from_json(Ended | None, spec["ended"])
    load_all(course)
    folder.take_over(spec["lock"])
    folder.lead(record.lease, detached=True)
    runtime = Runtime(transport, background=True)
    run = Run(record, folder, {}, runtime, course.plan if course else None, leads=True) if ended is None else None
    os.write(1, LEADS)
    os.dup2(2, 1)
    follow_run(record, folder, {}, runtime, course, run, ended)
    folder.release()
    transport.close()
