"""Brings the facts of one node: hardware, system, toolchains, the training interpreter, networks, limits.

spec: {"python": str|null, "activate": str|null, "env": {}, "workdir": str|null, "deadline": seconds}.
Answers {"op": "clock"} with J {"clock": its time}; the last J frame is {"facts": {...}}.

Every step is a daemon thread: what does not answer by the deadline (a wedged NFS mount, nvidia-smi, df) is named
in facts["timed_out"] and left behind. At the end the process group is killed, so no child outlives the probe.
A fact that could not be had is null; a fact whose step timed out or failed is missing. Sizes are bytes,
limits numbers or "unlimited", link speeds Mbit/s.
"""

import time

from fleet.node.base.gather import begin, finish, gather
from fleet.node.base.wire import send_json
from fleet.node.facts.network import infiniband, interfaces
from fleet.node.facts.system import disk, hardware, limits, system
from fleet.node.facts.tools import Tools, driver


def steps(spec):
    """[(name, function)]; the functions return {fact: value}, dictionaries of the same fact are merged."""
    tools = Tools(spec)
    folders = [("home", "~"), ("tmp", "/tmp"), ("shm", "/dev/shm")]
    if spec.get("workdir"):
        folders.insert(0, ("workdir", spec["workdir"]))
    return [
        ("activate", tools.activate),
        ("system", system),
        ("hardware", hardware),
        ("limits", limits),
        ("interfaces", interfaces),
        ("infiniband", infiniband),
        ("python", tools.python),
        ("compilers", tools.compilers),
        ("nccl", tools.nccl),
        ("driver", driver),
        ("gpus", tools.gpus),
        ("gpu processes", tools.gpu_processes),
    ] + [("disk " + name, lambda name=name, path=path: disk(name, path)) for name, path in folders]


def heed(message):
    if message.get("op") == "clock":
        send_json({"clock": time.time()})


def main():
    spec = begin(heed)
    began = time.monotonic()
    facts = gather(steps(spec), spec.get("deadline") or 20.0)
    facts["seconds"] = round(time.monotonic() - began, 3)
    finish({"facts": facts})
