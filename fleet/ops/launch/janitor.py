"""Stops a run on hosts that could not be reached when it ended; outlives the fleet command, but not for long.

`send_janitor` starts this module as a process in a session of its own. It tries each host again and again
until the run is stopped there or the time is over: by then the node's own lease has ended it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fleet.errors import FleetError
from fleet.model import Host
from fleet.ops.launch.logs import RunFolder
from fleet.ops.launch.plan import Plan
from fleet.transport.base import Cancel, ConnectOptions, Transport
from fleet.transport.program import call
from fleet.transport.ssh import SshTransport

MARGIN_SECONDS = 60.0
NO_LEASE_SECONDS = 3600.0
RETRY_SECONDS = 2.0


def send_janitor(plan: Plan, hosts: Sequence[Host], folder: RunFolder, transport: Transport) -> int | None:
    """Start it detached; its pid, or None when it cannot be started or the transport is not ssh."""
    if not isinstance(transport, SshTransport):
        return None
    lease = plan.options.lease
    spec = {
        "run": plan.run_id, "grace": plan.options.grace, "folder": str(folder.path),
        "seconds": NO_LEASE_SECONDS if lease is None else lease + plan.options.grace + MARGIN_SECONDS,
        "hosts": [_as_json(host) for host in hosts],
        "gateways": [_as_json(hop) for host in hosts for hop in transport.route(host)],
    }
    try:
        with (folder.path / "janitor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fleet.ops.launch.janitor"], cwd="/", start_new_session=True,
                stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert process.stdin
        process.stdin.write(json.dumps(spec).encode())
        process.stdin.close()
    except OSError:
        return None
    process.returncode = 0  # it outlives us on purpose: no ResourceWarning, no wait
    return process.pid


def _as_json(host: Host) -> dict[str, Any]:
    key = host.identity_file
    if key is not None and not key.startswith("~"):
        key = str(Path(key).absolute())  # its folder is another one
    return {**asdict(host), "identity_file": key, "env": {}}  # values of variables belong to ranks only


def _host(stored: dict[str, Any]) -> Host:
    return Host(**{**stored, "devices": None})


def clean(host: Host, run: str, grace: float, transport: Transport, until: float) -> str:
    """Try until the run is stopped on this host; what came of it, one line."""
    spec = {"run": run, "grace": grace, "reason": "the head gave this node up"}
    last = "never tried"
    while time.monotonic() < until:
        try:
            session = transport.connect(host, Cancel())
            try:
                answer = call(session, "stop", spec, timeout=grace + 30)
            finally:
                session.close()
            return f"stopped; processes left: {answer.get('left') or 'none'}"
        except FleetError as error:
            last = str(error)
        time.sleep(RETRY_SECONDS)
    return f"given up: {last}"


def main() -> None:
    """Read the spec from stdin, work, write what came of it to the run's events.jsonl."""
    spec = json.load(sys.stdin)
    folder = RunFolder(Path(spec["folder"]))
    hosts = [_host(stored) for stored in spec["hosts"]]
    transport = SshTransport(ConnectOptions(5.0), hosts=[*hosts, *map(_host, spec["gateways"])])
    until = time.monotonic() + float(spec["seconds"])

    def work(host: Host) -> None:
        said = clean(host, spec["run"], float(spec["grace"]), transport, until)
        folder.event("cleaned", host=host.name, message=f"{host.name}: {said}")

    threads = [threading.Thread(target=work, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    transport.close()


if __name__ == "__main__":
    main()
