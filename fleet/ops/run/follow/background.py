"""Continues a run after the end of the fleet command that began it, in a background process: fleet-leader. That process
has a session of its own, and reads one JSON document from stdin. It coordinates the run (lead() in launch/attempts.py),
or only cleans up: it stops the run on hosts that could not be reached, and fetches the rest of their logs.

It retries hosts that do not respond. It gives them up soon after the run's lease has expired, because the nodes then
end the run themselves. If the run has no lease, it gives them up after a week."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from fleet.answers.run_events import Cleaned
from fleet.background import unattended
from fleet.codec import from_json, to_json
from fleet.errors import FleetError, LimitError
from fleet.model import Host
from fleet.node.base.clock import CLOCK
from fleet.node.base.errors import on_failure
from fleet.node.gang.ends import BY_HAND
from fleet.ops.run.end.failure import fate_text
from fleet.ops.run.follow.fetch import fetch
from fleet.ops.run.follow.follow import SILENCE_SECONDS, Follower, FollowOptions, pause_after
from fleet.ops.run.kept.documents import SUMMARY, read_object
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, RunFolder
from fleet.ops.run.kept.record import RunRecord, host_elsewhere
from fleet.own import private
from fleet.own_process import own_process
from fleet.protocol.messages.run import Stopped, Verdict
from fleet.protocol.messages.run_specs import FollowSpec, StopSpec
from fleet.rules.left_behind import left
from fleet.runtime import Runtime
from fleet.transport import TRANSPORTS, open_transport
from fleet.transport.base import Cancel, ConnectOptions, Transport
from fleet.transport.program import Program, last_message

HELPER = "helper"
STOP = "run.stop run.follow"  # two node programs; one process on the node runs both in turn
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 2.0
FETCHING = threading.Lock()  # hosts of one run share its folder
LOOK_SECONDS = 1.0
LOG = "leader.log"  # in the run's folder: the stderr of the process
LEADS = b"leads\n"  # the process writes it when it coordinates the run
BEGIN_SECONDS = 120.0  # the longest wait for LEADS, on a busy machine
MARGIN_SECONDS = 60.0
NO_LEASE_SECONDS = 7 * 86400.0  # a run without a lease does not end by itself, so the retries need a limit


def patience(record: RunRecord) -> float:
    """Returns how many seconds to try hosts that do not answer."""
    return NO_LEASE_SECONDS if record.lease is None else record.lease + record.about["stop_grace"] + MARGIN_SECONDS


def stop_in_background(
    record: RunRecord, hosts: Sequence[Host], runtime: Runtime, end: Verdict | None, verdict: Verdict | None = None
) -> str:
    """Starts a process that stops the run on these hosts when they answer, and fetches its logs. Returns as text what
    will happen to its ranks there. end: why it is stopped. verdict: how the run ended; None if that is not known, or if
    another attempt follows."""
    spec = _spec(record, hosts, runtime.transport, end=end, verdict=verdict)
    if runtime.background and spec["transport"] in TRANSPORTS.names:  # this process does it in a thread, see wait()
        threading.Thread(target=stop, args=(spec,), name=HELPER).start()
        return fate_text(record.lease, os.getpid())
    process = _start("follow.background:stop", record, spec)
    return fate_text(record.lease, _left(process) if process else None)


def wait() -> None:
    """Waits until the threads of stop_in_background() have ended."""
    for thread in threading.enumerate():
        if thread.name == HELPER:
            thread.join()


def lead_in_background(
    record: RunRecord, folder: RunFolder, transport: Transport, hosts: Sequence[Host], course: Any, ended: Any
) -> int:
    """Starts a process that coordinates the run, and returns its pid. It has the folder's lock from the beginning, so
    that other commands never see the run as ended or unattended. Raises FleetError if no process on this machine
    coordinates the run. hosts: all hosts that it may need. course, ended: JSON, see follow_run()."""
    # the spec has values of variables that must not be written to disk, so it goes through a pipe
    spec = _spec(record, hosts, transport, lock=folder.lock, course=course, ended=ended)
    process = _start("launch.attempts:lead", record, spec)
    folder.let_go()
    if process is not None:
        assert process.stdout
        if select.select([process.stdout], [], [], BEGIN_SECONDS)[0] and os.read(process.stdout.fileno(), len(LEADS)):
            return _left(process)
        with process:
            process.kill()
    folder.set_state(leader=None)
    raise FleetError(
        f"nothing on this machine follows the run: {folder.path / LOG} may say why; it goes on all the same",
        hint=f"fleet attach {record.run_id}",
        kind="not-followed",
    )


def _spec(record: RunRecord, hosts: Sequence[Host], transport: Transport, **task: Any) -> dict[str, Any]:
    return {
        "record": to_json(record.elsewhere()),
        "hosts": [to_json(host_elsewhere(host)) for host in hosts],
        "transport": transport.name,
        "gateways": [to_json(host_elsewhere(hop)) for host in hosts for hop in transport.route(host)],
        **task,
    }


def _start(function: str, record: RunRecord, spec: dict[str, Any]) -> subprocess.Popen[bytes] | None:
    """Starts a background process. Returns None if that fails, or if the transport is not one of fleet's. The process
    holds the run's folder if the spec has its lock."""
    if spec["transport"] not in TRANSPORTS.names:
        return None
    fds = [spec["lock"]] if spec.get("lock") is not None else []
    try:
        with open(record.logs / LOG, "ab", opener=private) as log:
            return own_process(f"fleet.ops.run.{function}", spec, pass_fds=fds, stderr=log)
    except OSError:
        return None


def opened(spec: dict[str, Any]) -> tuple[RunRecord, RunFolder, Transport, list[Host]]:
    """Returns the objects that a background process needs, from its spec."""
    hosts, hops = (from_json(list[Host], spec[name]) for name in ("hosts", "gateways"))
    record, options = from_json(RunRecord, spec["record"]), ConnectOptions(CONNECT_SECONDS)
    return record, RunFolder(record.logs), open_transport(spec["transport"], options, [*hosts, *hops]), hosts


def _left(process: subprocess.Popen[bytes]) -> int:
    """Returns the pid of a process that outlives this one on purpose. Marks it as ended, so that Popen neither warns
    nor waits."""
    assert process.stdout
    process.stdout.close()
    process.returncode = 0
    return process.pid


# -- in the background process: hosts that could not be reached
def stop(spec: dict[str, Any]) -> None:
    """Stops the run on all of these hosts at once. Writes an event with the result for each."""
    record, folder, transport, hosts = opened(spec)
    until, came = CLOCK.monotonic() + patience(record), list[str]()
    end, verdict = spec["end"], spec["verdict"]
    grace = record.about["stop_grace"] if end and end["by"] in BY_HAND else record.grace
    folder.set_stopping([host.name for host in hosts])

    def work(host: Host) -> None:
        text, whole = clean(host, record.run_id, grace, transport, until, folder, record.attempt, end, verdict)
        if whole:
            came.append(host.name)
        folder.event(Cleaned(complete=whole), host=host.name, message=f"{host.name}: {text}")

    with ExitStack() as begun:  # waits for each thread, also after an error
        for host in hosts:
            try:
                begun.callback(unattended(f"stop {host.name}", partial(work, host)).exception)
            except LimitError:  # no more threads: this one does it
                work(host)
    correct_summary(folder, came, record.attempt)
    folder.set_stopping([])
    transport.close()


def clean(
    host: Host,
    run: str,
    grace: float,
    transport: Transport,
    until: float,
    folder: RunFolder,
    attempt: int = 0,
    end: Verdict | None = None,
    verdict: Verdict | None = None,
) -> tuple[str, bool]:
    """Tries until the run is stopped on this host. Returns the result as one line, and whether its logs are
    complete."""
    reason = "the head gave this node up"
    spec: StopSpec = {"run": run, "grace": grace, "reason": reason, "end": end, "verdict": verdict}
    if end is None or end["by"] != "stop":  # a "stop" also ends later attempts
        spec["attempt"] = attempt
    last, began = "never tried", CLOCK.monotonic()
    while CLOCK.monotonic() < until and not read_object(folder.path / SUMMARY).get("forgotten"):
        try:
            session = transport.connect(host, Cancel())
            with on_failure(session.close):
                program = Program(session, STOP, spec)
                answer = last_message(program, Stopped, timeout=grace + 30)
            whole = _fetch(run, program, transport, until, folder, attempt)
            return (
                f"stopped; processes left: {', '.join(left(answer)) or 'none'}; its logs are "
                f"{'complete' if whole else 'not complete'} here"
            ), whole
        except FleetError as error:
            last = str(error)
        CLOCK.sleep(pause_after(CLOCK.monotonic() - began, RETRY_SECONDS))
    return f"given up: {last}", False


def _fetch(
    run: str,
    program: Program,
    transport: Transport,
    until: float,
    folder: RunFolder,
    attempt: int,
) -> bool:
    """Fetches the rest of a host's logs of a run that is over. Returns whether they are complete. Holds the folder's
    lock only during the fetch, so that other processes can write there while this one waits for hosts."""
    spec: FollowSpec = {"run": run, "offsets": {}, "attempt": attempt}
    how = FollowOptions(spec, transport, node_timeout=SILENCE_SECONDS)

    def is_late(follower: Follower) -> bool:  # the connection was lost again
        now, since = CLOCK.monotonic(), follower.silent_since
        return now > until or since is not None and now - since > SILENCE_SECONDS

    with FETCHING:
        # the process that gave this host up may still hold the folder, for other hosts. If a later attempt has begun
        # (is_aside), no lock is needed: its process does not write to the files of this attempt
        while not folder.hold(LOOK_SECONDS) and not folder.is_aside(attempt):
            if CLOCK.monotonic() > until:
                program.session.close()
                return False
        try:
            waiting = {program.host.name: program}
            return fetch([program.host], folder, how, is_late, waiting, attempt)[program.host.name].complete
        finally:
            folder.release()


def correct_summary(folder: RunFolder, complete: Collection[str], attempt: int) -> None:
    """Records in summary.json that the logs of these hosts are complete now. Waits for the process that followed the
    run: it releases the folder after it has written the summary. Changes nothing if another process follows the run
    again, as that lists the incomplete logs itself. Changes nothing after a later attempt has begun, either."""
    if folder.is_aside(attempt) or not folder.hold(HANDOVER_SECONDS):
        return
    try:
        if summary := read_object(folder.path / SUMMARY):
            summary["incomplete_logs"] = [name for name in summary["incomplete_logs"] if name not in complete]
            folder.write_json(SUMMARY, summary)
    finally:
        folder.release()
