"""Follows a run in the place of a fleet command that leaves it (`launch --detach`): logs, gang rule, summary.

hand_over.py starts it as a process of its own. A run needs none: without one its nodes go on, and `fleet attach`
follows it again, from where its logs end here.
"""

from __future__ import annotations

import os
from typing import Any

from fleet.answers.run_events import Kept
from fleet.codec import from_json
from fleet.ops.run.follow.background import unpacked
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.launch.attempts import follow_run
from fleet.ops.run.launch.course import Course, Ended
from fleet.ops.run.launch.hand_over import FOLLOWS, load_all
from fleet.ops.run.launch.loop import Run
from fleet.runtime import Runtime


def main(spec: dict[str, Any]) -> None:
    """Follow it to its end."""
    record, _, transport = unpacked(spec)
    course = from_json(Course | None, spec["course"])
    ended = from_json(Ended | None, spec["ended"])
    load_all(course)
    folder = RunFolder(record.logs)
    folder.take_over(spec["lock"], helper=True)
    runtime = Runtime(transport)
    run = Run(record, folder, {}, runtime, course.plan if course else None) if ended is None else None
    os.write(1, FOLLOWS)
    os.dup2(2, 1)
    folder.event(Kept(pid=os.getpid()))
    follow_run(record, folder, {}, runtime, course, run, ended)
    folder.release()
    transport.close()
