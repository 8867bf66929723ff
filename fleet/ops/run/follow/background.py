"""Processes that go on with a run when the fleet command that began it has ended: keeper.py, janitor.py.

Each is a module started in a session of its own, and fed one JSON document: the run's record, and how its hosts are
reached.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from fleet.model import Host
from fleet.ops.run.kept.record import RunRecord, host_as_json, host_from_json
from fleet.own import private
from fleet.own_process import own_process
from fleet.transport import TRANSPORTS, open_transport
from fleet.transport.base import ConnectOptions, Transport

CONNECT_SECONDS = 5.0


def begin(
    name: str, record: RunRecord, hosts: Sequence[Host], transport: Transport, lock: int | None = None, **more: Any
) -> subprocess.Popen[bytes] | None:
    """Start it detached; None when it cannot be started, or knows no such transport. name: ROOM.NAME in fleet/ops/run.
    Its stdout is a pipe, what else it says is in NAME.log of the run's folder. lock: of that folder, if it is to hold
    it, too."""
    if transport.name not in TRANSPORTS.names:
        return None
    spec = {
        "record": record.as_json(),
        "hosts": [host_as_json(host) for host in hosts],
        "transport": transport.name,
        "gateways": [host_as_json(hop) for host in hosts for hop in transport.route(host)],
        "lock": lock,
        **more,
    }
    try:
        with open(record.logs / f"{name.rpartition('.')[2]}.log", "ab", opener=private) as log:
            return own_process(f"fleet.ops.run.{name}:main", spec, pass_fds=() if lock is None else (lock,), stderr=log)
    except OSError:
        return None


def leave(process: subprocess.Popen[bytes]) -> int:
    """It outlives us on purpose: no ResourceWarning, no wait; its pid."""
    assert process.stdout
    process.stdout.close()
    process.returncode = 0
    return process.pid


def unpacked(spec: dict[str, Any]) -> tuple[RunRecord, list[Host], Transport]:
    """Returns the record, the hosts and the transport of such a process, from its spec."""
    hosts = [host_from_json(stored) for stored in spec["hosts"]]
    hops = [host_from_json(stored) for stored in spec["gateways"]]
    transport = open_transport(spec["transport"], ConnectOptions(CONNECT_SECONDS), [*hosts, *hops])
    return RunRecord.from_json(spec["record"]), hosts, transport
