"""Describes the folder that a run is to work in: its code, its data, its script."""

import hashlib
import os
import pkgutil
import sys
import threading

from fleet.node.base.types import Any
from fleet.node.delivery.sync_state import delivery, half_delivered
from fleet.node.facts.tools import Tools

HASH_LIMIT = 16 << 20
SYNC_WAIT = 5.0
SHADOWS_MOST = 20
# what else a script means that imports it, in addition to Python's own modules
PACKAGES = ("torch", "numpy", "deepspeed", "colossalai", "accelerate", "transformers")
UNMEANT = ("test", "this", "antigravity", "idlelib")  # no program imports these from Python


class Workdir:
    """spec: {"workdir": str|null, "script": str|null, "program": bool, "module": bool, "configs": [paths]}; program:
    exec looks for the script, no interpreter; module: `python -m` does; configs: files that the script will read.
    tools: finds programs on the PATH, and modules."""

    def __init__(self, spec: "dict[str, Any]", tools: "Tools") -> None:
        self.tools = tools
        self.script = os.path.expanduser(spec.get("script") or "")
        self.program = spec.get("program") and "/" not in self.script
        self.module = spec.get("module")
        self.path = os.path.abspath(os.path.expanduser(spec.get("workdir") or "~"))
        self.configs = [str(path) for path in spec.get("configs") or ()]
        self.settled = threading.Event()

    def code(self) -> "dict[str, Any]":
        """Returns the facts of the workdir's code, or of the script's where that came another way; what is wrong comes
        first."""
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
        self.settled.wait(2 * SYNC_WAIT + 1)  # a script is looked at when the sync that may replace it has ended
        found = self.find()
        path = found or os.path.join(self.path, self.script)
        exists = found is not None and os.path.isfile(path)
        size = os.path.getsize(path) if exists else None
        facts = {"path": path, "exists": exists, "size": size, "sha256": None, "executable": os.access(path, os.X_OK)}
        if size is not None and size <= HASH_LIMIT:
            with open(path, "rb") as f:
                data = f.read(HASH_LIMIT)
            facts["sha256"] = hashlib.sha256(data).hexdigest()
            # rank.py starts a shell's and an interpreter's script also where it may not be executed
            # but it would take one of Python's that names no interpreter for a shell's
            names_one = data[:2] == b"#!" or path.endswith(".sh")
            facts["executable"] = names_one or (facts["executable"] and not path.endswith(".py"))
        missing = [it for it in self.configs if not os.path.isfile(os.path.join(self.path, os.path.expanduser(it)))]
        folder = {"script_folder": path} if os.path.isdir(path) else {}
        return {"script": facts, "configs_missing": missing, **folder}

    def shadows(self) -> "dict[str, Any]":
        """Files of the folder that Python looks in first, before its own modules and packages of the same names."""
        self.settled.wait(2 * SYNC_WAIT + 1)
        inside = "" if self.program or self.module else os.path.dirname(self.script)
        folder = os.path.join(self.path, inside)
        known = {module.name for module in pkgutil.iter_modules([os.path.dirname(os.__file__)])}
        known = known.union(PACKAGES).difference(UNMEANT, sys.builtin_module_names)
        found = [module for module in pkgutil.iter_modules([folder]) if module.name in known]
        files = [module.name + ("/" if module.ispkg else ".py") for module in found]
        return {"shadows": {"folder": folder, "files": files[:SHADOWS_MOST]}}

    def find(self) -> "str | None":
        """Returns where the script lies, or would lie; None for a module that is not found."""
        if self.module:
            return self.tools.module(self.script, self.path)
        found = self.tools.tool(self.script, env=self.tools.environment()[1]) if self.program else None
        return found or os.path.join(self.path, self.script)
