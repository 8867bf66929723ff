"""The logs of a run come to its folder on this machine: from its nodes, or by another process of this machine. Where in
them begins what was written since some time is known to the nodes, which have marked how they grew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from fleet.errors import FleetError, HostFailed
from fleet.model import Host
from fleet.ops.run.find.find import FoundRun
from fleet.ops.run.follow.fetch import POLL_SECONDS, complete, fetch
from fleet.ops.run.follow.follow import Follower, Following
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import Asking, has_ended, submitted
from fleet.ops.run.kept.state import written
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.run import FollowSpec, Since
from fleet.protocol.messages.values import Failed
from fleet.runtime import Runtime
from fleet.sources import SOURCES
from fleet.sources.queue import State
from fleet.transport.program import call

ASK_SECONDS = 30.0
LEFT_SECONDS = 5.0


def bring(
    found: FoundRun,
    folder: RunFolder,
    runtime: Runtime,
    sessions: Sessions,
    *,
    once: bool,
) -> dict[str, FleetError]:
    """Fetches what is not here yet, from all nodes at once; once: what there is now. Returns the hosts that it did not
    come from; none where another process requests the folder, to lead the run."""
    folder.begin(found.attempt)
    attempt = None if found.about["least"] else found.attempt
    spec: FollowSpec = {"run": found.run_id, "offsets": {}, "attempt": attempt, "once": once, "passive": True}
    how = Following(spec, runtime.transport)

    def is_given_up() -> bool:
        return runtime.cancel.is_set() or folder.asked_for()

    def is_late(follower: Follower) -> bool:
        return is_given_up() or once and follower.silent_since is not None  # what it has will be there next time

    messages = fetch(found.hosts.values(), folder, how, is_late, sessions.take_all(found.hosts))
    given_up, whole = is_given_up(), complete(messages)
    dropped = {message.host: message.data for message in messages if message.what == "dropped"}
    full = {message.host: message.data for message in messages if message.what == "blocked"}

    def lacks(name: str) -> FleetError:
        why, hint = dropped.get(name), None
        if name in full:
            why, hint = f"{folder.path}: {full[name]}", f"when there is room: fleet logs {found.run_id}"
        elif why is None:
            why = f"{folder.path / name} holds more than the node does"
            hint = f"move it away; 'fleet logs {found.run_id}' brings them anew"
        return HostFailed(f"its logs are not complete here: {why}", host=name, kind="incomplete", hint=hint)

    return {name: lacks(name) for name in found.hosts if name not in whole and not given_up}


def wait_for(folder: RunFolder, runtime: Runtime, poll: Callable[[], object]) -> None:
    """Another process on this machine, or a job, fetches the logs, until the run is over, or none does: another may
    take over."""
    job, seen = submitted(folder.path), time.monotonic()
    asking = Asking(SOURCES.get(job.on).queue(), job.job) if job is not None else None
    while not runtime.cancel.is_set():
        poll()
        if asking is not None:
            asking.look()
            if has_ended(folder.path) or asking.last.state is State.OVER:
                return
        elif written(folder.path):
            seen = time.monotonic()
        elif (folder.path / "summary.json").exists() or time.monotonic() - seen > LEFT_SECONDS:
            return
        time.sleep(POLL_SECONDS)


def offsets_since(
    when: float, found: FoundRun, sessions: Sessions
) -> tuple[Mapping[str, Mapping[str, int]], Mapping[str, FleetError]]:
    """({host: {log: where it begins}}, errors by host). when: seconds since the epoch, by this machine's clock."""
    ago = time.time() - when  # so that the clocks need not agree

    def ask(host: Host) -> Mapping[str, int]:
        spec = {"run": found.run_id, "ago": ago}
        answer = call(sessions.get(host), "run.times", spec, Since | Failed, timeout=ASK_SECONDS)
        if answer["event"] == "failed":
            raise HostFailed(answer["message"], host=host.name, hint=answer["hint"])
        return answer["offsets"]

    return sessions.each(tuple(found.hosts.values()), ask, "since")
