"""Whether this node can take its part in a run: interpreter, engine, script, devices, the way to the master.

spec: {"run", "node_rank", "master": {"address", "port", "token": hex, "is_me": bool, "peers": n}, "script": str|null,
"workdir": str|null, "python": str|null, "activate": str|null, "env": {}, "engine": name, "modules": [names],
"deadline": s, "peer_addresses": [str]}. Answers J {"event": "ready"} at once (who waits for others knows from when),
J {"event": "facts", "facts": {...}}, then X. Facts:
    time, seconds          this node's clock at the end of the work; how long that took
    hostname, arch, ...    as in the probe of `check`; cpus: usable here
    activate               what went wrong with that line, or null
    python                 {"path", "executable", "version", "error"}; torch, deepspeed: as in the probe
    modules                {name: version | null}, null: it cannot be imported. Nothing is imported to find out
    workdir                {"path", "exists", "type": file system}
    code                   how what a sync delivered there stands, as sync_state.py's delivery() tells it, or null
    data                   what of data has come in part, as unfinished.py's half_delivered() tells it, or null
    script                 {"path", "exists", "size", "sha256" (below 16 MiB), "executable"}, or null
    builds                 [{"path", "sure"}]: locks of builds that nobody holds, see extension_builds.py
    gpus, gpu_error, gpu_processes   as in the probe; a process also has "run_id" and "command" where /proc shows them
    network, port          see rendezvous.py
    timed_out, failed      names of the steps that gave no answer in time, and {name: why} of those that broke
    disks (home, workdir), memory, pci_gpus, driver   as in the probe
Step names: those of the probe, and files, code, builds, network, port. Control line {"op": "done"} ends the waiting
for others. End of file on stdin ends everything.
"""

import hashlib
import os
import signal
import threading
import time

from fleet.node.base.gather import finish, gather, leave
from fleet.node.base.wire import control_lines, send_json, start, start_heartbeat
from fleet.node.delivery.sync_state import delivery
from fleet.node.delivery.unfinished import half_delivered
from fleet.node.facts.system import disk, filesystem, hardware, system, text
from fleet.node.facts.tools import Tools, driver
from fleet.node.ports.listeners import describe
from fleet.node.run.extension_builds import build_root, stale_locks
from fleet.node.run.rendezvous import meet, network

HASH_LIMIT = 16 << 20
MARGIN = 0.3
SYNC_WAIT = 5.0


class Preflight:
    def __init__(self, spec):
        self.spec = spec
        self.tools = Tools(spec)
        self.done = threading.Event()
        self.settled = threading.Event()
        self.until = time.monotonic() + spec["deadline"]

    def steps(self):
        return [
            ("activate", self.tools.activate),
            ("system", self.system),
            ("hardware", hardware),
            ("driver", driver),
            ("python", self.python),
            ("disk home", lambda: disk("home", "~")),
            ("disk workdir", lambda: disk("workdir", self.spec.get("workdir") or "~")),
            ("files", self.files),
            ("code", self.code),
            ("gpus", self.tools.gpus),
            ("gpu processes", self.gpu_processes),
            ("builds", self.builds),
            ("network", lambda: network(self.spec)),
            ("port", lambda: meet(self.spec, self.until - MARGIN, self.done)),
        ]

    def system(self):
        return dict(system(), cpus=len(os.sched_getaffinity(0)))

    def python(self):
        facts = self.tools.python()
        packages = facts.pop("packages")
        facts["modules"] = {
            name: (facts.get(name) or {}).get("version") if name in ("torch", "deepspeed") else packages.get(name)
            for name in self.spec.get("modules") or []
        }
        return facts

    def files(self):
        self.settled.wait(2 * SYNC_WAIT + 1)  # a script is looked at when the sync that may replace it has ended
        workdir = os.path.abspath(os.path.expanduser(self.spec.get("workdir") or "~"))
        facts = {
            "script": None,
            "workdir": {
                "path": workdir,
                "exists": os.path.isdir(workdir),
                "type": filesystem(os.path.realpath(workdir), text("/proc/self/mounts"))[0],
            },
        }
        script = self.spec.get("script")
        if script:
            path = os.path.join(workdir, os.path.expanduser(script))
            if self.spec.get("engine") == "command" and "/" not in script:
                # a program: exec looks for it on the PATH, and only there
                path = self.tools.tool(script) or script
            facts["script"] = file_facts(path)
        return facts

    def code(self):
        """Of the workdir, or of the script where that came another way; what is wrong comes first."""
        try:
            workdir, first = os.path.abspath(os.path.expanduser(self.spec.get("workdir") or "~")), None
            for path in (workdir, os.path.join(workdir, os.path.expanduser(self.spec.get("script") or ""))):
                facts = delivery(path, SYNC_WAIT)
                if facts and (facts["busy"] or facts["half"]):
                    return {"code": facts, "data": None}
                first = first or facts
            return {"code": first, "data": half_delivered(workdir)}
        finally:
            self.settled.set()

    def builds(self):
        self.tools.activated.wait()
        stale = stale_locks(build_root(lambda name: self.tools.env.get(name, "")))
        return {"builds": [{"path": path, "sure": sure} for path, (_, sure) in sorted(stale.items())][:20]}

    def gpu_processes(self):
        facts = self.tools.gpu_processes()
        for process in facts["gpu_processes"]:
            known = describe(process["pid"])
            process.update({key: known.get(key) for key in ("command", "run_id")})
        return facts

    def listen(self):
        for message in control_lines():
            if isinstance(message, dict) and message.get("op") == "done":
                self.done.set()
        leave()


def file_facts(path):
    facts = {
        "path": path,
        "exists": os.path.isfile(path),
        "size": None,
        "sha256": None,
        "executable": os.access(path, os.X_OK),
    }
    if facts["exists"]:
        facts["size"] = os.path.getsize(path)
        if facts["size"] <= HASH_LIMIT:
            with open(path, "rb") as f:
                facts["sha256"] = hashlib.sha256(f.read(HASH_LIMIT)).hexdigest()
    return facts


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    preflight = Preflight(start())
    try:
        os.setpgid(0, 0)
    except OSError:
        pass  # already the leader of its session, as under sshd
    start_heartbeat()
    send_json({"event": "ready"})
    thread = threading.Thread(target=preflight.listen)
    thread.daemon = True
    thread.start()
    began = time.monotonic()
    facts = gather(preflight.steps(), preflight.spec["deadline"])
    facts.update(seconds=round(time.monotonic() - began, 3), time=time.time())
    finish({"event": "facts", "facts": facts})
