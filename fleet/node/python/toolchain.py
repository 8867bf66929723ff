"""What this node would compile with, and the GPUs it has. Nothing is changed.

spec: {"python": str|null, "activate": str|null, "env": {}, "deadline": s}. Answers J {"facts": {...}}:
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

    def compiler(
        self, name: str, word: "str | None", arguments: "list[str]", pattern: str, *places: str
    ) -> "dict[str, str | None] | None":
        tools = self.tools
        tools.activated.wait()
        wanted = (tools.env.get(word) or "").split() if word else []
        path = tools.tool(wanted[0] if wanted else name, *places)
        if path is None:
            return None
        try:
            _status, out, _err = run([path] + arguments, tools.env)
        except OSError:
            return None
        return {"path": path, "version": find(pattern, out)}

    def compilers(self) -> "dict[str, Any]":
        self.tools.activated.wait()
        full = ["-dumpfullversion", "-dumpversion"]
        home = self.tools.env.get("CUDA_HOME")
        cuda = [home + "/bin"] if home else []
        return {
            "cc": self.compiler("gcc", "CC", full, r"^(\d+(?:\.\d+)*)$"),
            "cxx": self.compiler("g++", "CXX", full, r"^(\d+(?:\.\d+)*)$"),
            "nvcc": self.compiler(
                "nvcc", None, ["--version"], r"release (\d+(?:\.\d+)*)", *cuda + ["/usr/local/cuda/bin"]
            ),
            "ninja": self.compiler("ninja", None, ["--version"], r"^(\d+(?:\.\d+)*)"),
        }

    def build(self) -> "dict[str, Any]":
        try:
            out = run([self.tools.interpreter(), "-c", ASK_BUILD], self.tools.env)[1]
        except Refused:
            return {}  # the step `python` says so
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
