"""Reports the compilers that a build on this node would use, and its GPUs. It changes nothing.

spec: {"python": str|null, "workdir": str|null, "activate": str|null, "env": {}, "deadline": s}. Sends J
{"facts": {...}}:
    activate, python, torch, glibc, gpus, gpu_error, ...   as in the probe; each of gpus also has
                           "capability": "8.0" | null
    cc, cxx, nvcc, ninja   {"path", "version"}, or null if it is missing; $CC, $CXX and $CUDA_HOME are respected
    headers                path of Python.h | null
    backends               {module: bool} of modules that build wheels; setuptools 70.1 and newer replace "wheel"
    timed_out, failed      as in the probe
"""

import json
import re

from fleet.node.base.gather import begin, finish, gather
from fleet.node.base.types import Any, build
from fleet.node.facts.ask import NOT_HERE, run
from fleet.node.facts.gpus import gpu_health, gpus
from fleet.node.facts.system import system
from fleet.node.facts.tools import NINJA, Tools

ASK_BUILD = (
    NOT_HERE
    + r"""
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
)


class Toolchain:
    def __init__(self, spec: "build.ToolchainSpec") -> None:
        self.tools = Tools(spec)

    def compilers(self) -> "dict[str, Any]":
        env = self.tools.environment()[1]
        return {
            "cc": self.tools.compiler(env, "gcc", "CC") or None,
            "cxx": self.tools.compiler(env, "g++", "CXX") or None,
            "nvcc": self.tools.nvcc(env) or None,
            "ninja": self.tools.program(env, "ninja", *NINJA) or None,
        }

    def build(self) -> "dict[str, Any]":
        path, env = self.tools.environment()
        if not path:
            return {}  # the step `python` reports it
        answer: dict[str, Any] = json.loads(run([path, "-c", ASK_BUILD], env)[1].strip().splitlines()[-1])
        return answer

    def gpus(self) -> "dict[str, Any]":
        facts = {**gpus(self.tools), **gpu_health(self.tools)}
        for gpu in facts.get("gpus", ()):
            capability = gpu.get("capability") or ""
            gpu["capability"] = capability if re.match(r"\d+\.\d+$", capability) else None
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
