"""At which addresses this node reaches others, and lets itself be reached.

spec: {"port": where all of them listen, "token": this node's, "visitors": how many visits it gets, "seconds",
"visits": [{"id": int, "address", "token": that node's, "port": that node's, where it has one of its own}]}. The first
message is {"listening": bool}: others may come. The control line {"op": "done"} ends the visits. The answer is
{"reached": {id: true}}, and "error" where this node could not listen. Tokens differ: an address that leads back here is
nobody else's.
"""

import threading
import time
from functools import partial

from fleet.node.base.gather import begin, finish, gather
from fleet.node.base.types import Any, Step
from fleet.node.base.wire import send_json
from fleet.node.run.look.rendezvous import receive_peers, visit_master

MARGIN = 0.5


def main() -> None:
    done = threading.Event()

    def heed(message: "dict[str, Any]") -> None:
        if message.get("op") == "done":
            done.set()

    spec = begin(heed)
    until = time.monotonic() + spec["seconds"] - MARGIN

    def listen() -> "dict[str, Any]":
        own = {"port": spec["port"], "token": spec["token"], "peers": spec["visitors"]}
        error = receive_peers(own, until, done, lambda: send_json({"listening": True}))["error"]
        if error:
            send_json({"listening": False})
        return {"error": error}

    def visit(one: "dict[str, Any]") -> "dict[str, Any]":
        there = {"address": one["address"], "port": one.get("port", spec["port"]), "token": one["token"]}
        return {"reached": {str(one["id"]): True}} if visit_master(there, one["id"], until, done)["ok"] else {}

    steps: list[Step] = [("listen", listen)]
    steps += [("visit %d" % one["id"], partial(visit, one)) for one in spec["visits"]]
    said = gather(steps, spec["seconds"])
    finish({"reached": said.get("reached", {}), "error": said.get("error")})
