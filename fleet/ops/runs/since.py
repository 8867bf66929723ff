"""Where in a run's logs begins what was written since some time: its nodes have marked how the logs grew."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fleet.errors import FleetError, HostFailed
from fleet.model import Host
from fleet.ops.launch.start import Sessions
from fleet.ops.runs.find import FoundRun
from fleet.protocol.messages.run import Since
from fleet.protocol.messages.values import Failed
from fleet.transport.program import call

ASK_SECONDS = 30.0


def offsets_since(
    when: float, found: FoundRun, sessions: Sessions
) -> tuple[Mapping[str, Mapping[str, int]], Mapping[str, FleetError]]:
    """({host: {log: where it begins}}, errors by host). when: seconds since the epoch, by this machine's clock."""
    ago = time.time() - when  # so that the clocks need not agree

    def ask(host: Host) -> Mapping[str, int]:
        spec = {"run": found.run_id, "ago": ago}
        answer = call(sessions.get(host), "run.since", spec, Since | Failed, timeout=ASK_SECONDS)
        if answer["event"] == "failed":
            raise HostFailed(answer["message"], host=host.name, hint=answer["hint"])
        return answer["offsets"]

    return sessions.each(tuple(found.hosts.values()), ask, "since")
