"""Runs the command of `launch --notify`, a line for sh, at the end of a run that this process coordinates."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

from fleet.answers.run_events import Notified, Notifies
from fleet.events import Level, Notice
from fleet.ops.run.kept.documents import RUN, read_object, stored
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.reader import events_of
from fleet.transport.base import Cancel
from fleet.transport.local import finish

SECONDS = 30.0  # time limit of the command
MOST_BYTES = 1 << 20  # the most output of the command


def of_record(folder: RunFolder) -> str | None:
    """Returns the line that this user's fleet recorded at the launch; None if there is none, or if it may be secret."""
    return stored(str, read_object(folder.path / RUN), "launch", "notify") if folder.was_launched_here else None


def begins(folder: RunFolder, attempt: int) -> bool:
    """Records that the line starts for this attempt. Returns False if the run's events show that already."""
    if any(event.attempt == attempt for event in events_of(folder.path, Notifies)):
        return False
    folder.event(Notifies(attempt=attempt))
    return True


def notify(line: str, summary: Mapping[str, Any], folder: RunFolder, cancel: Cancel) -> Notice:
    """Runs the line, with the summary on its standard input. Returns a notice of how it ended. cancel: ends the command
    if it is set once more from now on."""
    before = cancel.count
    level: Level = "warning"
    code, why = None, f"it was ended, as it took {SECONDS:g} s or printed more than {MOST_BYTES >> 20} MiB"
    try:
        text = json.dumps(summary, default=str).encode() + b"\n"
        argv = ["/bin/sh", "-c", f"exec 2>&1\n{line}"]
        code, out, _ = finish(argv, text, SECONDS, lambda: cancel.count > before, most=MOST_BYTES)
    except OSError as error:
        why = f"/bin/sh: {error.strerror}"
    else:
        if code is None and cancel.count > before:
            why = "it was interrupted"
        elif code is not None:
            last = out.decode("utf-8", "replace").rstrip().rpartition("\n")[2][-200:]
            level = "warning" if code else "info"
            how = f"killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
            why = how + f": {last}" * bool(last)
    return folder.notice(level, f"--notify: {why}", Notified(exit_code=code))
