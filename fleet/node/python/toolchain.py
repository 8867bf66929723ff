"""What this node would compile with, and the GPUs it has. Nothing is changed.

spec: {"python": str|null, "workdir": str|null, "activate": str|null, "env": {}, "deadline": s}. Answers J
{"facts": {...}}:
    activate, python, torch, glibc, gpus, gpu_error, ...   as in the probe; each of gpus also has
                           "capability": "8.0" | null
    cc, cxx, nvcc, ninja   {"path", "version"}, or null where there is none; $CC, $CXX and $CUDA_HOME count
    headers                path of Python.h | null
    backends               {module: bool} of what builds wheels; setuptools 70.1 and newer need no "wheel" for it
    timed_out, failed      as in the probe
"""

import json
import re

from fleet.node.base.errors import Refused
from fleet.node.base.gather import begin, finish, gather
from fleet.node.facts.system import find, system
from fleet.node.facts.tools import Tools, rows, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ASK_BUILD = r"""
import json, os, sysconfig
from importlib.util import find_spec
header = os.path.join(sysconfig.get_path("include"), "Python.h")
backends = {name: find_spec(name) is not None for name in ("pip", "setuptools", "wheel")}
if backends["setuptools"]:
    own = os.path.join(os.path.dirname(find_spec("setuptools").origin), "command", "bdist_wheel.py")
    backends["wheel"] = backends["wheel"] or os.path.exists(own)
print()
print(json.dumps({"headers": header if os.path.exists(header) else None, "backends": backends}))
"""


class Toolchain:
    def __init__(self, spec: "dict[str, Any]") -> None:
        self.tools = Tools(spec)
        self.spec = spec

    def compilers(self) -> "dict[str, Any]":
        env = self.tools.environment()[1]
        full = ["-dumpfullversion", "-dumpversion"]
        home = env.get("CUDA_HOME")
        cuda = ([home + "/bin"] if home else []) + ["/usr/local/cuda/bin"]

        def compiler(
            name: str, word: "str | None", arguments: "list[str]", pattern: str, *places: str
        ) -> "dict[str, str | None] | None":
            wanted = (env.get(word) or "").split() if word else []
            path = self.tools.tool(wanted[0] if wanted else name, *places, env=env)
            if path is None:
                return None
            try:
                return {"path": path, "version": find(pattern, run([path] + arguments, env)[1])}
            except OSError:
                return None

        return {
            "cc": compiler("gcc", "CC", full, r"^(\d+(?:\.\d+)*)$"),
            "cxx": compiler("g++", "CXX", full, r"^(\d+(?:\.\d+)*)$"),
            "nvcc": compiler("nvcc", None, ["--version"], r"release (\d+(?:\.\d+)*)", *cuda),
            "ninja": compiler("ninja", None, ["--version"], r"^(\d+(?:\.\d+)*)"),
        }

    def build(self) -> "dict[str, Any]":
        try:
            path, env = self.tools.interpreter()
        except Refused:
            return {}  # the step `python` says so
        out = run([path, "-c", ASK_BUILD], env)[1]
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return answer

    def gpus(self) -> "dict[str, Any]":
        facts = self.tools.gpus()
        smi = self.tools.tool("nvidia-smi")
        if smi and facts["gpus"]:
            # a driver before 510 does not know the field, and says so with a status
            status, out, _err = run([smi, "--query-gpu=index,compute_cap", "--format=csv,noheader"], self.tools.env)
            caps = {int(index): said for index, said in rows(out, 2)} if status == 0 else {}
            for gpu in facts["gpus"]:
                said = caps.get(gpu["index"], "")
                gpu["capability"] = said if re.match(r"\d+\.\d+$", said) else None
        return facts


def main() -> None:
    spec = begin()
    chain = Toolchain(spec)
    todo = [
        ("activate", chain.tools.activate),
        ("python", chain.tools.python),
        ("build", chain.build),
        ("compilers", chain.compilers),
        ("system", system),
        ("gpus", chain.gpus),
    ]
    facts = gather(todo, spec["deadline"])
    facts.pop("packages", None)
    finish({"facts": facts})
