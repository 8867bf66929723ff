"""Whether another attempt of a run can begin on this node: nothing of earlier ones is left, a port is free for it.

spec: {"run", "attempt", "ports": [candidates], none where ranks do not meet}. Answers J {"event": "ready",
"left": [pids], "port": the first that is free or null, "forbidden": whether the run was stopped for good meanwhile}.
"""

from fleet.node.base.wire import send_exit, send_json, start
from fleet.node.run.rendezvous import listen_everywhere
from fleet.node.run.run_folder import is_forbidden, run_folder
from fleet.node.run.stop import stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from fleet.protocol.messages import run

say: "Callable[[run.Ready], None]" = send_json


def is_free(port: int) -> bool:
    try:
        listen_everywhere(port).close()
    except OSError:
        return False
    return True


def main() -> None:
    spec: run.ReadySpec = start()
    name, attempt = spec["run"], spec["attempt"]
    left: list[int] = []
    if run_folder(name) is not None:
        left, _was = stop({"run": name, "grace": 0.0, "reason": "another attempt begins", "attempt": attempt - 1})
    port = next((port for port in spec["ports"] if is_free(port)), None)
    say({"event": "ready", "left": left, "port": port, "forbidden": is_forbidden(name, attempt)})
    send_exit(0)
