"""Collects the facts of one node, for `check` and for a launch's preflight: all that fleet/rules looks at.

spec: {"python": str|null, "activate": str|null, "env": {}, "workdir": str|null, "deadline": seconds}; "survey": true
has it report all "interpreters" there, as it does anyway where the one that trains, or its torch, is missing;
"modules": names of those to import; "packages": of those to report, all where it is not there; "way": see
facts/way.py; for a launch also
{"env_expand": {}, "run": str, "script": str, "program": bool, "module": bool, "configs": [paths],
"unread": [paths], "node_rank",
"master": {"address", "port", "token": hex, "is_me": bool, "peers": n}}.
Control lines: {"op": "clock"} is answered with J {"clock": its time}, {"op": "done"} ends the waiting for the other
nodes. The last J frame is {"facts": {...}}; see protocol/messages/facts.py and, for code, data, builds, network, port
and runs, sync_state.py, extension_builds.py, rendezvous.py and list_runs.py.

Every step is a daemon thread: what does not answer by the deadline (a wedged NFS mount, nvidia-smi, df) is named
in facts["timed_out"] and abandoned. At the end the process group is killed, so no child outlives the probe.
A fact is its value; null where there is none; missing where it is not known: its step timed out or failed. Sizes are
bytes, limits numbers or "unlimited", link speeds Mbit/s.
"""

import os
import threading
import time

from fleet.node.base.gather import begin, finish, gather
from fleet.node.base.types import Any, Step
from fleet.node.base.wire import send_json
from fleet.node.delivery.sync_state import changed_data
from fleet.node.facts.network import infiniband, interfaces
from fleet.node.facts.system import disk, hardware, limits, own_disk, system
from fleet.node.facts.tools import Tools, driver
from fleet.node.facts.way import nccl_conf, network
from fleet.node.ports.listeners import describe
from fleet.node.preflight.workdir import Workdir
from fleet.node.python.interpreters import interpreters
from fleet.node.run.look.remains import remains
from fleet.node.run.look.rendezvous import meet
from fleet.node.run.neighbours import others
from fleet.node.run.start.extension_builds import build_root, stale_locks
from fleet.protocol.steps import OWN_SECONDS

MARGIN = 0.3


def steps(spec: "dict[str, Any]", tools: Tools, done: threading.Event) -> "list[Step]":
    """[(name, function)]; the functions return {fact: value}, dictionaries of the same fact are merged."""
    until = time.monotonic() + spec["deadline"] - MARGIN
    workdir = Workdir(spec, tools)
    if not spec.get("workdir"):
        workdir.settled.set()
    # name, the key of the spec without which it is not taken, function
    every: list[tuple[str, str | None, Any]] = [
        ("activate", None, tools.activate),
        ("system", None, system),
        ("hardware", None, hardware),
        ("python", None, lambda: python(tools, spec.get("packages"))),
        ("driver", None, driver),
        ("gpus", None, tools.gpus),
        ("gpu processes", None, lambda: gpu_processes(tools)),
        ("builds", None, lambda: builds(tools)),
        ("runs", None, lambda: {"runs": others(spec.get("run"))}),
        ("environment", None, tools.inherited),
        ("code", "workdir", workdir.code),
        ("shadows", "workdir", workdir.shadows),
        ("unread", "unread", lambda: {"unread": tools.first_file(spec["unread"])}),
        ("network", "way", lambda: way_of(spec, tools)),
        ("files", "master", workdir.files),
        ("port", "master", lambda: meet(spec, until, done)),
        ("disk workdir", "workdir", lambda: disk("workdir", spec["workdir"])),
        ("disk home", None, lambda: disk("home", "~")),
        ("disk shm", None, lambda: disk("shm", "/dev/shm")),
        ("disk tmp", None, lambda: disk("tmp", "/tmp")),
        ("disk fleet", None, own_disk),
        ("limits", None, limits),
        ("interfaces", None, interfaces),
        ("infiniband", None, infiniband),
        ("compilers", None, tools.compilers),
        ("nccl", None, tools.nccl),
        ("data files", None, changed_data),
        ("imports", "modules", lambda: tools.imports(spec["modules"])),
    ]
    return [(name, function) for name, needed, function in every if needed is None or spec.get(needed)]


def way_of(spec: "dict[str, Any]", tools: Tools) -> "dict[str, Any]":
    conf = nccl_conf()
    tools.activated.wait()
    return dict(network(spec, {**conf, **tools.env}), nccl_conf=conf)


def python(tools: Tools, packages: "list[str] | None") -> "dict[str, Any]":
    facts = tools.python()
    if packages is not None:
        facts["packages"] = {name: facts["packages"][name] for name in packages if name in facts["packages"]}
    return facts


def lacks(facts: "dict[str, Any]", modules: "list[str]") -> bool:
    """Is true where the interpreter that trains does not work, or has no torch where that is needed."""
    return "python" in facts and not (facts["python"]["version"] and (facts["torch"] or "torch" not in modules))


def gpu_processes(tools: Tools) -> "dict[str, Any]":
    facts = tools.gpu_processes()
    for process in facts.get("gpu_processes", ()):
        known = describe(process["pid"])
        process.update({key: known.get(key) for key in ("command", "run_id")})
    return facts


def builds(tools: Tools) -> "dict[str, Any]":
    tools.activated.wait()
    stale = stale_locks(build_root({os.fsencode(name): os.fsencode(value) for name, value in tools.env.items()}))
    return {"builds": [{"path": path, "sure": sure} for path, (_, sure) in sorted(stale.items())][:20]}


def main() -> None:
    done = threading.Event()

    def heed(message: "dict[str, Any]") -> None:
        if message.get("op") == "clock":
            send_json({"clock": time.time()})
        elif message.get("op") == "done":
            done.set()

    spec = begin(heed)
    began = time.monotonic()
    left = remains() if spec.get("master") else []  # before anybody looks who has the ports and the GPUs
    tools = Tools(spec)
    facts = gather(steps(spec, tools, done), spec["deadline"], OWN_SECONDS)
    if spec.get("survey") or lacks(facts, spec.get("modules", ["torch"])):
        facts["interpreters"] = interpreters(tools.env, spec.get("workdir"))
    facts["remains"] = left
    facts["seconds"] = round(time.monotonic() - began, 3)
    finish({"facts": facts})
