"""Runs one benchmark program on this node, and reports a free port at which the nodes' programs can meet.

spec: that of Tools in fleet/node/facts/tools.py. The first message is {"port"}. The control line {"op": "run",
"program": its name, null for the training interpreter, "argv": its arguments, "env": {variables to add}, "delay":
seconds before it starts} starts the program. The last message is {"status": exit code, or minus the signal's number, or
null if the program cannot be started, "out": the end of stdout, "why": the last output line, or ""}. If the head closes
the connection, this process and the program end.
"""

import queue
import time

from fleet.node.base.gather import begin, finish
from fleet.node.base.types import Any
from fleet.node.base.wire import send_json
from fleet.node.facts.ask import last_line, run
from fleet.node.facts.tools import Tools
from fleet.node.ports.listeners import free_port

OUT_LIMIT = 1 << 12  # the longest text that the head accepts


def main() -> None:
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    tools = Tools(begin(orders.put))
    tools.activate()
    send_json({"port": free_port()})
    order = orders.get()
    while order.get("op") != "run":
        order = orders.get()
    python, env = tools.environment()
    time.sleep(order["delay"])
    try:
        status, out, err = run([order["program"] or python] + order["argv"], dict(env, **order["env"]))
    except OSError as error:
        finish({"status": None, "out": "", "why": str(error)})
    else:
        finish({"status": status, "out": out[-OUT_LIMIT:], "why": last_line(out, err)})
