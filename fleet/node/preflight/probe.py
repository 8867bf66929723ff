"""Collects the facts of one node that fleet/rules checks, for `check` and for a launch's preflight.

spec: {"python": str|null, "activate": str|null, "env": {}, "workdir": str|null, "deadline": seconds}. Optional keys:
"survey": true also reports all Python "interpreters" of the node; so does a training interpreter that is missing or
lacks torch. "modules": names of modules to import. "packages": names of packages to report; without it, all are.
"container": the image that training runs in. "container_args": options for its runtime. "way": see facts/way.py.
"health": true also reports all that the driver knows of the GPUs and NVLinks, and the kernel's log. For a launch also
{"env_expand": {}, "run": its id, "script": str, "program": bool, "module": bool, "configs": [paths] (see Workdir),
"unread": [paths] that a launcher would read by default but does not read under fleet (see first_file()), "node_rank",
"master": {"address", "port", "token": hex, "is_me": bool, "peers": n} (see rendezvous.py)}.
Control lines: the response to {"op": "clock"} is J {"clock": the node's Unix time}; {"op": "done"} ends the wait for
the other nodes. The last J frame is {"facts": {...}}; see protocol/messages/facts.py. More about code, data, builds,
port and runs is in sync_state.py, extension_builds.py, rendezvous.py and list_runs.py.

Every step is a daemon thread. A broken NFS mount, nvidia-smi or df may hang: facts["timed_out"] names each step that
has not ended by the deadline. At the end the process group is killed, so no child outlives the probe. A fact is null
if there is no value. It is missing if it is unknown, because its step timed out or failed. Sizes are in bytes, link
speeds in Mbit/s; a limit is a number or "unlimited".
"""

import hashlib
import os
import pkgutil
import sys
import threading
import time

from fleet.node.base.gather import begin, finish, gather
from fleet.node.base.types import Any, Step
from fleet.node.base.wire import send_json
from fleet.node.delivery.sync_state import changed_data, delivery, half_delivered
from fleet.node.facts import gpus
from fleet.node.facts.network import infiniband, interfaces
from fleet.node.facts.system import disk, hardware, limits, own_disk, system
from fleet.node.facts.tools import Tools, driver
from fleet.node.facts.way import nccl_conf, network
from fleet.node.ports.listeners import describe
from fleet.node.preflight.rendezvous import meet
from fleet.node.python.interpreters import interpreters
from fleet.node.run.neighbours import others
from fleet.node.run.start.extension_builds import build_root, stale_locks
from fleet.node.run.start.kernel_log import KernelLog
from fleet.node.run.stop import remains
from fleet.protocol.steps import own_seconds

MARGIN = 0.3  # seconds before the deadline at which the meeting of the nodes ends
HASH_LIMIT = 16 << 20  # bytes of the largest script of which a digest is reported
SYNC_WAIT = 5.0  # seconds to wait for a sync to end
SHADOWS_MOST = 20
# packages that a user's file of the same name would hide, in addition to Python's own modules
PACKAGES = ("torch", "numpy", "deepspeed", "colossalai", "accelerate", "transformers")
OF_THE_NODE = ("environment", "builds", "compilers", "nccl")  # steps that are left out if training runs in a container
UNMEANT = ("test", "this", "antigravity", "idlelib")  # modules of Python that no program imports


class Workdir:
    """Describes the folder in which a run will work: its code, its data, its script.

    spec: {"workdir": str|null, "script": str|null, "program": bool, "module": bool, "configs": [paths]}. program: the
    script is a program, on the PATH if its name has no "/". module: the script is a module for `python -m`. configs:
    files that the script will read. tools: finds programs on the PATH, and modules. settled: set when the step "code"
    has ended, so that no sync replaces the script any more."""

    def __init__(self, spec: "dict[str, Any]", tools: "Tools") -> None:
        self.tools = tools
        self.script = os.path.expanduser(spec.get("script") or "")
        self.program = spec.get("program") and "/" not in self.script
        self.module = spec.get("module")
        self.path = os.path.abspath(os.path.expanduser(spec.get("workdir") or "~"))
        self.configs = [str(path) for path in spec.get("configs") or ()]
        self.settled = threading.Event()

    def code(self) -> "dict[str, Any]":
        """Returns the facts of the delivery to the workdir. If there is none, returns those of the delivery of the
        script. If one of the two is under way or incomplete, returns that one's."""
        try:
            first = facts = None
            script = self.script.replace(".", "/") + ".py" if self.module else self.script
            for path in (self.path, os.path.join(self.path, script)):
                facts = delivery(path, SYNC_WAIT)
                if facts and (facts["busy"] or facts["half"]):
                    return {"code": facts, "data": None}
                first = first or facts
            of_script = {"script": facts["file"] if facts and "file" in facts else None}
            return {"code": first and dict(first, **of_script), "data": half_delivered(self.path)}
        finally:
            self.settled.set()

    def files(self) -> "dict[str, Any]":
        self.settled.wait(2 * SYNC_WAIT + 1)  # a sync that is under way may replace the script
        found = self.find()
        path = found or os.path.join(self.path, self.script)
        exists = found is not None and os.path.isfile(path)
        size = os.path.getsize(path) if exists else None
        facts = {"path": path, "exists": exists, "size": size, "sha256": None, "executable": os.access(path, os.X_OK)}
        if size is not None and size <= HASH_LIMIT:
            with open(path, "rb") as f:
                data = f.read(HASH_LIMIT)
            facts["sha256"] = hashlib.sha256(data).hexdigest()
            # rank.py starts shell scripts, and scripts with a "#!" line, even if they are not executable. It would
            # treat a Python script without such a line as a shell script: that counts as not executable
            names_one = data[:2] == b"#!" or path.endswith(".sh")
            facts["executable"] = names_one or (facts["executable"] and not path.endswith(".py"))
        missing = [it for it in self.configs if not os.path.isfile(os.path.join(self.path, os.path.expanduser(it)))]
        folder = {"script_folder": path} if os.path.isdir(path) else {}
        return {"script": facts, "configs_missing": missing, **folder}

    def shadows(self) -> "dict[str, Any]":
        """Returns the files that hide Python's modules or known packages. They are in the folder that Python searches
        first: the script's, or the workdir."""
        self.settled.wait(2 * SYNC_WAIT + 1)
        inside = "" if self.program or self.module else os.path.dirname(self.script)
        folder = os.path.join(self.path, inside)
        known = {module.name for module in pkgutil.iter_modules([os.path.dirname(os.__file__)])}
        known = known.union(PACKAGES).difference(UNMEANT, sys.builtin_module_names)
        found = [module for module in pkgutil.iter_modules([folder]) if module.name in known]
        files = [module.name + ("/" if module.ispkg else ".py") for module in found]
        return {"shadows": {"folder": folder, "files": files[:SHADOWS_MOST]}}

    def find(self) -> "str | None":
        """Returns the path of the script, even if no file is there. Returns None for a module that is not found."""
        if self.module:
            return self.tools.module(self.script, self.path)
        found = self.tools.executable(self.script) if self.program else None
        return found or os.path.join(self.path, self.script)


def steps(spec: "dict[str, Any]", tools: Tools, done: threading.Event) -> "list[Step]":
    """Returns [(name, function)] of the steps that the spec needs. A function returns {fact: value}. gather() merges
    the values of a fact if they are dictionaries. done: set when the head ends the wait for the other nodes."""
    until = time.monotonic() + spec["deadline"] - MARGIN
    workdir = Workdir(spec, tools)
    if not spec.get("workdir"):
        workdir.settled.set()
    # (name, key that the spec must have for this step, function); None as the key: every spec needs the step
    every: list[tuple[str, str | None, Any]] = [
        ("activate", None, tools.activate),
        ("system", None, system),
        ("hardware", None, hardware),
        ("python", None, lambda: python(tools, spec.get("packages"))),
        ("driver", None, driver),
        ("gpus", None, lambda: gpus.gpus(tools)),
        ("gpu processes", None, lambda: gpu_processes(tools)),
        ("gpu health", "health", lambda: gpus.gpu_health(tools)),  # its facts replace those of the step "gpus"
        ("nvlinks", "health", lambda: gpus.nvlinks(tools)),
        ("kernel log", "health", xids),
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
        ("container", "container", lambda: {"container": tools.container()}),
        ("imports", "modules", lambda: tools.imports(spec["modules"])),
    ]
    unasked = OF_THE_NODE if spec.get("container") else ()
    return [(name, step) for name, needed, step in every if (not needed or spec.get(needed)) and name not in unasked]


def way_of(spec: "dict[str, Any]", tools: Tools) -> "dict[str, Any]":
    conf = nccl_conf()
    tools.activated.wait()
    return dict(network(spec, {**conf, **tools.env}), nccl_conf=conf)


def python(tools: Tools, packages: "list[str] | None") -> "dict[str, Any]":
    facts = tools.python()
    if packages is not None and "packages" in facts:
        facts["packages"] = {name: facts["packages"][name] for name in packages if name in facts["packages"]}
    return facts


def lacks(facts: "dict[str, Any]", modules: "list[str]") -> bool:
    """Returns whether the training interpreter does not work, or lacks torch although `modules` names torch."""
    return "python" in facts and not (facts["python"]["version"] and (facts["torch"] or "torch" not in modules))


def gpu_processes(tools: Tools) -> "dict[str, Any]":
    facts = gpus.gpu_processes(tools)
    for process in facts.get("gpu_processes", ()):
        known = describe(process["pid"])
        process.update({key: known.get(key) for key in ("command", "run_id")})
    return facts


def xids() -> "dict[str, Any]":
    found = KernelLog(0.0).xids()
    return {} if found is None else {"xids": found}


def builds(tools: Tools) -> "dict[str, Any]":
    tools.activated.wait()
    stale = stale_locks(build_root({os.fsencode(name): os.fsencode(value) for name, value in tools.env.items()}))
    return {"builds": [{"path": path, "sure": sure} for path, (_, sure) in sorted(stale.items())][:20]}


def main() -> None:
    done = threading.Event()

    def on_message(message: "dict[str, Any]") -> None:
        if message.get("op") == "clock":
            send_json({"clock": time.time()})
        elif message.get("op") == "done":
            done.set()

    spec = begin(on_message)
    began = time.monotonic()
    left = remains() if spec.get("master") else []  # before the steps: leftovers of runs may hold ports and GPUs
    tools = Tools(spec)
    facts = gather(steps(spec, tools, done), spec["deadline"], own_seconds(spec["deadline"]))
    if spec.get("survey") or not spec.get("container") and lacks(facts, spec.get("modules", ["torch"])):
        facts["interpreters"] = interpreters(tools.env, spec.get("workdir"))
    facts["remains"] = left
    facts["seconds"] = round(time.monotonic() - began, 3)
    finish({"facts": facts})
