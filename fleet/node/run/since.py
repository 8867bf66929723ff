"""Where in a run's logs begins what was written in the last seconds, give or take one.

spec: {"run", "ago": seconds}. Answers J {"event": "since", "offsets": {name: bytes}}; a log that is missing was written
since as a whole. Or J {"event": "failed", "message", "hint"}.
"""

import time

from fleet.node.base.wire import send_exit, send_json, start
from fleet.node.run.run_folder import run_folder
from fleet.node.run.times import sizes_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from fleet.protocol.messages import run
    from fleet.protocol.messages.values import Failed

say: "Callable[[run.Since | Failed], None]" = send_json


def main() -> None:
    spec: run.SinceSpec = start()
    folder = run_folder(spec["run"])
    if folder is None:
        say({"event": "failed", "message": "run %s is not known on this node" % spec["run"], "hint": None})
        send_exit(1)
    else:
        say({"event": "since", "offsets": sizes_at(folder, time.time() - spec["ago"])})
        send_exit(0)
