"""Starts the process that goes on with a run when the fleet command that began it has ended: launch/leader.py, in a
session of its own, fed one JSON document."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from fleet.codec import to_json
from fleet.errors import FleetError
from fleet.model import Host
from fleet.ops.run.end.failure import fate
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord, host_elsewhere
from fleet.own import private
from fleet.own_process import own_process
from fleet.protocol.messages.run import Verdict
from fleet.transport import TRANSPORTS
from fleet.transport.base import Transport

LOG = "leader.log"  # in the run's folder: what it says besides
LEADS = b"leads\n"  # what it says once it does
BEGIN_SECONDS = 120.0  # in which it does, on a busy machine; one that ends before that is not waited for
MARGIN_SECONDS = 60.0
NO_LEASE_SECONDS = 7 * 86400.0  # nothing else ends a run that needs no head


def patience(record: RunRecord) -> float:
    """For how many seconds hosts that do not answer are tried."""
    return NO_LEASE_SECONDS if record.lease is None else record.lease + record.stop_grace + MARGIN_SECONDS


def stop_behind(
    record: RunRecord, hosts: Sequence[Host], transport: Transport, end: Verdict | None, verdict: Verdict | None = None
) -> str:
    """Have the run stopped on these hosts, once they answer, and its logs brought. Returns what becomes of its ranks
    there, in words. end: why it is stopped. verdict: on it; None: there is none, or another attempt follows."""
    process = _start(record, hosts, transport, end=end, verdict=verdict)
    return fate(record.lease, _left(process) if process else None)


def lead_behind(
    record: RunRecord, folder: RunFolder, transport: Transport, hosts: Sequence[Host], course: Any, ended: Any
) -> int:
    """Have the run led by a process of its own: it has the folder's lock from the beginning, so that nobody takes the
    run for one that is over or was left. Returns its pid. FleetError: nobody on this machine leads it. hosts: all that
    it may need. course, ended: JSON, see follow_run()."""
    # it holds values of variables, which are written nowhere: it goes to our own child, through a pipe
    process = _start(record, hosts, transport, folder.lock, course=course, ended=ended)
    folder.let_go()
    if process is not None:
        assert process.stdout
        until, said = time.monotonic() + BEGIN_SECONDS, b""
        while not said and select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            said = os.read(process.stdout.fileno(), len(LEADS))
            if not said:
                break
        if said:
            return _left(process)
        with process:
            process.kill()
    folder.say(leader=None)
    raise FleetError(
        f"nothing on this machine follows the run: {folder.path / LOG} may say why; it goes on all the same",
        hint=f"fleet attach {record.run_id}",
        kind="not-followed",
    )


def _start(
    record: RunRecord, hosts: Sequence[Host], transport: Transport, lock: int | None = None, **task: Any
) -> subprocess.Popen[bytes] | None:
    """None where it cannot be started, or knows no such transport. lock: of the run's folder, which it is to hold."""
    if transport.name not in TRANSPORTS.names:
        return None
    spec = {
        "record": to_json(record.elsewhere()),
        "hosts": [to_json(host_elsewhere(host)) for host in hosts],
        "transport": transport.name,
        "gateways": [to_json(host_elsewhere(hop)) for host in hosts for hop in transport.route(host)],
        "lock": lock,
        **task,
    }
    try:
        with open(record.logs / LOG, "ab", opener=private) as log:
            fds = () if lock is None else (lock,)
            return own_process("fleet.ops.run.launch.leader:main", spec, pass_fds=fds, stderr=log)
    except OSError:
        return None


def _left(process: subprocess.Popen[bytes]) -> int:
    """It outlives us on purpose: no ResourceWarning, no wait; its pid."""
    assert process.stdout
    process.stdout.close()
    process.returncode = 0
    return process.pid
