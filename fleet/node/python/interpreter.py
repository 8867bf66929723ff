"""Reports the facts of this node's training interpreter, and which of a set of wheels it has. It changes nothing.

spec: {"python": str|null, "workdir": str|null, "activate": str|null, "env": {}, "deadline": s, "judge": bool,
"wheels": [{"name", "version", "identity"}]}. Sends J {"event": "facts", ...}:
    executable, version, implementation, platform, soabi, prefix, target (the folder into which wheels are installed)
    pip (version | null), tags (what this pip installs, best first);
    managed (PEP 668); free (bytes at target)
    states  per wheel {"state": "there" | "absent" | "other" | "broken", "version", "why", "verified": bool}
    markers {"python_version", ...}, as requirements name them;
    dists   [{"name", "version", "requires", "extras"}] of installed distributions, without those of failed installs.
pip, tags and dists are filled only with "judge". Any refusal is J {"event": "failed", "message", "hint"}.
"""

import os

from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import nearest_folder
from fleet.node.base.gather import begin, finish, gather
from fleet.node.base.types import Any, wheels
from fleet.node.facts.tools import Tools
from fleet.node.python.installed import begun_file, training_python, verified_file, wheel_answer


def facts(spec: "wheels.InterpreterSpec") -> "dict[str, Any]":
    tools = Tools(spec)
    path = training_python(tools)
    answer = wheel_answer(path, tools, spec["wheels"], spec["judge"], spec["deadline"])
    for wheel, state in zip(spec["wheels"], answer["states"]):
        state["verified"] = os.path.exists(verified_file(answer, wheel))
    answer["dists"] = [dist for dist in answer["dists"] if not os.path.exists(begun_file(answer, dist))]
    room = os.statvfs(nearest_folder(answer["target"]))
    answer["free"] = room.f_bavail * room.f_frsize
    return dict(answer, event="facts", path=path)


def main() -> None:
    spec = begin()

    def step() -> "dict[str, Any]":
        try:
            return {"answer": facts(spec)}
        except Refused as refused:
            return {"answer": failed(refused)}

    found = gather([("python", step)], spec["deadline"] + 5.0)
    why = found["failed"].get("python") or "the interpreter gave no answer in %d s" % spec["deadline"]
    finish(found.get("answer") or failed(Refused(why, "a file system there hangs")))
