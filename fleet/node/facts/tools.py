"""Finds what the activated environment offers: interpreter, packages, compilers, NVIDIA's tools."""

import glob
import hashlib
import os
import platform
import re
import shutil
import threading

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, values
from fleet.node.facts.ask import FIND_MODULE, ask_interpreter, last_line, run
from fleet.node.facts.environment import enter, job_env
from fleet.node.facts.imports import imports
from fleet.node.facts.system import find, text
from fleet.protocol.environment import activating

# options that print their version: gcc before 7 knows only -dumpversion, later ones print no more than "12" for it
GCC = (["-dumpfullversion", "-dumpversion"], r"^(\d+(?:\.\d+)*)$")
INFOROM = 14  # nvidia-smi's status where it has warned of one, and all else is well
GPU_FIELDS = "index,name,memory.total,uuid,driver_version,ecc.errors.uncorrected.volatile.total"
# an old driver knows not all of these, and answers nothing then
GPU_STATE = ",memory.used,compute_mode,mig.mode.current,clocks_throttle_reasons.active"
READ = re.compile(
    r"(TORCH|PYTORCH|NCCL|CUDA|GLOO|OMP|MKL|KMP|PYTHON|LD_|HF_|UCX|NVIDIA)|(https?|all|no|ftp)_proxy$", re.I
)
NINJA = (["--version"], r"^(\d+(?:\.\d+)*)")


def driver() -> "dict[str, Any]":
    # from the kernel: it answers also where nvidia-smi hangs
    version = text("/proc/driver/nvidia/version")
    return {
        "driver": find(r"(?:Kernel Module|x86_64|aarch64)\s+(\d+\.[\d.]+)", version),
        "driver_gpus": len(glob.glob("/proc/driver/nvidia/gpus/*")),
    }


def versions(**tools: "dict[str, str | None]") -> "dict[str, str | None]":
    """Returns the version of each tool, None where there is none; a tool that does not print its version is left
    out."""
    return {name: tool.get("version") for name, tool in tools.items() if not tool or tool["version"]}


def rows(out: str, width: int) -> "list[list[str]]":
    """The lines of a CSV that have exactly `width` cells and a number in front."""
    lines = [[cell.strip() for cell in line.split(",")] for line in out.splitlines()]
    return [cells for cells in lines if len(cells) == width and cells[0].isdigit()]


def count(cell: str, unit: int = 1) -> "int | None":
    """A number, or None for "[N/A]" and its like."""
    return int(cell) * unit if cell.isdigit() else None


def state_of(used: str = "", mode: str = "", mig: str = "", slowed: str = "") -> "dict[str, Any]":
    """Returns what is known of a GPU's state. slowed: the bits of why its clocks are low."""
    found = {
        "used": count(used, 1 << 20),
        "mode": mode or None,
        "mig": {"Enabled": True, "Disabled": False}.get(mig),
        "slowed": int(slowed, 16) if re.match(r"0x[0-9a-fA-F]{1,16}$", slowed) else None,
    }
    return {name: value for name, value in found.items() if value is not None}


class Tools:
    """The steps that run tools; all but `activate` wait for the environment that it sets up."""

    def __init__(self, spec: "values.Training") -> None:
        self.spec = spec
        env = job_env(spec.get("workdir"), spec)
        self.env = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        self.activated = threading.Event()

    def environment(self) -> "tuple[str, dict[str, str]]":
        """The path of the interpreter that trains, "" for none, and the environment that everything there runs in."""
        self.activated.wait()
        env = {os.fsencode(name): os.fsencode(value) for name, value in self.env.items()}
        path = os.fsdecode(enter(env, self.spec.get("python"), self.spec.get("workdir")))
        return path, {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}

    def inherited(self) -> "dict[str, Any]":
        """A digest of each variable that torch, NCCL, CUDA, Python, the linker and proxies read: values may be secret.
        "visible": how many GPUs CUDA_VISIBLE_DEVICES names, null where it is not set."""
        env = self.environment()[1]
        ours = self.spec.get("env") or {}
        digests = {
            name: hashlib.sha256(env[name].encode("utf-8", "surrogateescape")).hexdigest()[:12]
            for name in sorted(env)
            if READ.match(name) and name not in ours
        }
        named = env.get("CUDA_VISIBLE_DEVICES")
        visible = None if named is None else len([each for each in named.split(",") if each.strip() not in ("", "-1")])
        return {"environment": digests, "visible": visible}

    def first_file(self, places: "list[str]") -> "str | None":
        """Returns the first path whose $NAMEs are all set, where it is a file."""
        self.activated.wait()
        for place in places:
            path = re.sub(r"\$(\w+)", lambda name: self.env.get(name.group(1), "\0"), place)
            if "\0" not in path:
                path = os.path.expanduser(path)
                return path if os.path.isfile(path) else None
        return None

    def tool(self, name: str, *places: str, env: "dict[str, str] | None" = None) -> "str | None":
        """Returns where a tool lies: on the PATH, of `env` or after `activate`, or in one of these places."""
        self.activated.wait()
        return shutil.which(name, path=os.pathsep.join(((env or self.env).get("PATH", os.defpath),) + places))

    def activate(self) -> "dict[str, str | None]":
        """The environment that results from the inventory's `activate` line; the fact is what went wrong, or null."""
        line = self.spec.get("activate")
        problem = None
        if line:
            # what the line itself prints comes before the first NUL
            script = activating(line, "status=$?; printf '\\0'; env -0; exit $status")
            arguments = [self.spec.get("python") or "", self.spec.get("workdir") or "~"]
            status, out, err = run(["bash", "-c", script, "bash"] + arguments, self.env)
            pairs = [pair.split("=", 1) for pair in out.split("\0")[1:] if "=" in pair]
            if pairs:
                self.env = dict(pairs)
            if status != 0 or not pairs:
                problem = last_line(err) or "exit status %d" % status
        self.activated.set()
        return {"activate": problem}

    def missing(self) -> str:
        """Returns the message for a node without an interpreter."""
        wanted = self.spec.get("python")
        return "%s: no such program" % wanted if wanted else "no python3 and no python on the PATH"

    def interpreter(self) -> "tuple[str, dict[str, str]]":
        """Returns what environment() does. Raises Refused where there is no interpreter."""
        path, env = self.environment()
        if not path:
            raise Refused(self.missing(), "correct 'python' (or 'activate') of this host in the inventory")
        return path, env

    def python(self) -> "dict[str, Any]":
        path, env = self.environment()
        found, error = ask_interpreter(path, env) if path else (None, self.missing())
        if found is None:
            answer = {"path": path or None, "version": None, "error": error}
            return {"python": answer, "torch": None, "deepspeed": None, "packages": {}}
        facts = {name: found.pop(name) for name in ("torch", "deepspeed", "packages", "unreadable")}
        return dict(facts, python=dict(found, path=path, error=None))

    def imports(self, modules: "list[str]") -> "dict[str, Any]":
        path, env = self.environment()
        return {"imports": imports(path, env, modules) if path else {}}

    def module(self, name: str, workdir: str) -> "str | None":
        """The file that `python -m name` would run there, or the archive that it lies in."""
        path, env = self.environment()
        try:  # in that folder, for a relative PYTHONPATH
            out = run([path, "-c", FIND_MODULE, name, workdir], env, workdir)[1] if path else ""
        except OSError:
            out = ""
        return (out.splitlines() or [""])[-1] or None

    def program(
        self, env: "dict[str, str]", name: str, arguments: "list[str]", pattern: str, *places: str
    ) -> "dict[str, str | None]":
        """{"path", "version"} of a tool, version None where it prints none; nothing where there is none."""
        path = self.tool(name, *places, env=env)
        try:
            return {"path": path, "version": find(pattern, run([path] + arguments, env)[1])} if path else {}
        except OSError:
            return {"path": path, "version": None}

    def compiler(self, env: "dict[str, str]", name: str, word: str) -> "dict[str, str | None]":
        """The one that torch would take: the variable `word` decides last. Clang has no version of gcc's."""
        found = self.program(env, (env.get(word, "").split() or [name])[0], *GCC)
        return dict(found, version=None) if "clang" in (found.get("path") or "") else found

    def nvcc(self, env: "dict[str, str]") -> "dict[str, str | None]":
        usual = "/usr/local/cuda"
        places = (env.get("CUDA_HOME") or usual, usual)
        return self.program(env, "nvcc", ["--version"], r"release (\d+(?:\.\d+)*)", *(p + "/bin" for p in places))

    def compilers(self) -> "dict[str, Any]":
        env = self.environment()[1]
        compilers = {
            "gcc": self.compiler(env, "gcc", "CC"),
            "g++": self.compiler(env, "g++", "CXX"),
            "ninja": self.program(env, "ninja", *NINJA),
        }
        return dict(versions(cuda_toolkit=self.nvcc(env)), compilers=versions(**compilers))

    def nccl(self) -> "dict[str, Any]":
        """The system's NCCL, by its file name; the one that torch contains is in facts["torch"]."""
        self.activated.wait()
        folders = self.env.get("LD_LIBRARY_PATH", "").split(":") + [
            "/usr/lib/%s-linux-gnu" % platform.machine(),
            "/usr/lib64",
            "/usr/local/lib",
            "/usr/local/nccl/lib",
        ]
        found = [path for folder in folders if folder for path in sorted(glob.glob(folder + "/libnccl.so.*.*.*"))]
        return {"nccl_library": found[0].rsplit(".so.", 1)[1] if found else None}

    def smi(self, query: str, width: int) -> "tuple[list[list[str]], str | None]":
        """The rows that nvidia-smi answers with, and its error message; neither where there is none."""
        path = self.tool("nvidia-smi")
        if path is None:
            return [], None
        status, out, err = run([path, query, "--format=csv,noheader,nounits"], self.env)
        warned = status == INFOROM and bool(out.strip())  # of a damaged infoROM, which ends no run
        wrong = (last_line(err, out) or "nvidia-smi: exit status %d" % status) if status and not warned else None
        return rows(out, width), wrong

    def gpus(self) -> "dict[str, Any]":
        found, error = self.smi("--query-gpu=" + GPU_FIELDS + GPU_STATE, 10)
        if not found:
            found, error = self.smi("--query-gpu=" + GPU_FIELDS, 6)
        gpus = [
            dict(
                state_of(*state),
                index=int(index),
                name=name,
                memory=count(memory, 1 << 20),
                uuid=uuid,
                driver=version,
                ecc_errors=count(ecc),
                reset="requires reset" in " ".join((name, memory, uuid, version, ecc)),
            )
            for index, name, memory, uuid, version, ecc, *state in found
        ]
        # an error that names no GPU does not mean that there is none
        return dict({"gpus": gpus} if gpus or not error else {}, gpu_error=error)

    def gpu_processes(self) -> "dict[str, Any]":
        found, error = self.smi("--query-compute-apps=pid,gpu_uuid,used_memory", 3)
        processes = [{"pid": int(pid), "gpu": gpu, "memory": count(used, 1 << 20)} for pid, gpu, used in found]
        return {"gpu_processes": processes} if processes or not error else {}
