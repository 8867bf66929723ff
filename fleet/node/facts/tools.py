"""Finds the interpreter, packages and compilers in the environment of training, and NVIDIA's driver. A shell line of
the inventory, `activate`, sets that environment up."""

import glob
import hashlib
import os
import platform
import re
import shutil
import threading
from itertools import takewhile

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, values
from fleet.node.facts import runtimes
from fleet.node.facts.ask import FIND_MODULE, ask_interpreter, imports, last_line, run
from fleet.node.facts.containers import client, inside, sealed
from fleet.node.facts.environment import enter, job_env, working_folder
from fleet.node.facts.system import find, text
from fleet.protocol.environment import activating

# options that print the version, and its pattern. gcc before 7 knows only -dumpversion. For -dumpversion later ones
# print only the first number, so they need -dumpfullversion
GCC = (["-dumpfullversion", "-dumpversion"], r"^(\d+(?:\.\d+)*)$")
READ = re.compile(
    r"(TORCH|PYTORCH|NCCL|CUDA|GLOO|OMP|MKL|KMP|PYTHON|LD_|HF_|UCX|NVIDIA)|(https?|all|no|ftp)_proxy$", re.I
)
INSIDE_SECONDS = 60  # a program in a container ends after this time at the latest
NOT_STARTED = (125, 126, 127)  # exit codes of a runtime's client if it could not start the program
# Python text before a program in a container: it ends the program after INSIDE_SECONDS, even if the client is killed
ENDS = "import faulthandler; faulthandler.dump_traceback_later(%d, exit=True)\n" % INSIDE_SECONDS
WHICH = "import shutil, sys; print(shutil.which(sys.argv[1]) or '')"
NINJA = (["--version"], r"^(\d+(?:\.\d+)*)")


def driver() -> "dict[str, Any]":
    # from the kernel module, because nvidia-smi may hang
    version = text("/proc/driver/nvidia/version")
    return {
        "driver": find(r"(?:Kernel Module|x86_64|aarch64)\s+(\d+\.[\d.]+)", version),
        "driver_gpus": len(glob.glob("/proc/driver/nvidia/gpus/*")),
    }


def versions(**tools: "dict[str, str | None]") -> "dict[str, str | None]":
    """Returns the version of each tool, and None for a missing tool. Omits a tool that prints no version."""
    return {name: tool.get("version") for name, tool in tools.items() if not tool or tool["version"]}


class Tools:
    """Runs tools in the environment of training. activate() sets up that environment; all other methods wait until it
    has. found: the result of container(), once it is known."""

    def __init__(self, spec: "values.Training") -> None:
        self.spec = spec
        env = job_env(spec.get("workdir"), spec)
        self.env = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        self.activated, self.lock = threading.Event(), threading.Lock()
        self.found: dict[str, Any] | None = None

    def container(self) -> "dict[str, Any] | None":
        """Returns the runtime for the spec's image, as runtimes.find() does. Returns None if the spec has no image."""
        self.activated.wait()
        image = self.spec.get("container")
        with self.lock:
            if image and self.found is None:
                none = {"runtime": None, "image": image}
                self.found = runtimes.find(image, self.env, self.spec.get("workdir")) or none
        return self.found

    def lacks_image(self) -> bool:
        """Returns whether the image is missing or unknown, so that nothing can run in the container."""
        found = self.container()
        return found is not None and not found.get("id")

    def run(self, argv: "list[str]", env: "dict[str, str]", cwd: "str | None" = None) -> "tuple[int, str, str]":
        """Runs [an interpreter, "-c", program, ...] as ask.run() does, in the spec's container if it has one."""
        found = self.container()
        if found is None:
            return run(argv, env, cwd)
        folder = working_folder(self.spec.get("workdir"))
        mounts = [folder] if folder != "/" and os.path.isdir(folder) else []
        names = (*(self.spec.get("env") or ()), *(self.spec.get("env_expand") or ()))
        given = {os.fsencode(name): os.fsencode(env[name]) for name in names if name in env}
        try:
            command = client(found, list(self.spec.get("container_args") or ()), None, mounts, [])
        except Refused as error:
            raise OSError(error.message) from None
        command += inside([*argv[:2], ENDS + argv[2], *argv[3:]], self.spec.get("python"), folder)
        with sealed(given, folder if mounts else "/", 0o077, -1) as stdin:
            status, out, err = run(command, dict(os.environ), None, stdin)
        if status in NOT_STARTED:
            raise OSError(last_line(err))
        return status, out, err

    def executable(self, name: str) -> "str | None":
        """Returns the path at which the training command finds a program, or None."""
        path, env = self.environment()
        if self.container() is None:
            return self.tool(name, env=env)
        return last_line(self.run([path, "-c", WHICH, name], env)[1]) or None

    def environment(self) -> "tuple[str, dict[str, str]]":
        """Returns (path of the training interpreter, environment for the interpreter and its tools). The path is "" if
        there is no interpreter."""
        self.activated.wait()
        if self.spec.get("container"):
            return self.spec.get("python") or "python3", self.env
        env = {os.fsencode(name): os.fsencode(value) for name, value in self.env.items()}
        path = os.fsdecode(enter(env, self.spec.get("python"), self.spec.get("workdir")))
        return path, {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}

    def inherited(self) -> "dict[str, Any]":
        """Returns {"environment": name -> digest, "visible": the number of GPUs in CUDA_VISIBLE_DEVICES, None if that
        is not set}. The names are those of variables that torch, NCCL, CUDA, Python, the linker or a proxy client
        reads, without those in the spec's `env`. It returns digests as values may be secret."""
        env = self.environment()[1]
        ours = self.spec.get("env") or {}
        digests = {
            name: hashlib.sha256(env[name].encode("utf-8", "surrogateescape")).hexdigest()[:12]
            for name in sorted(env)
            if READ.match(name) and name not in ours
        }
        named = env.get("CUDA_VISIBLE_DEVICES")
        none = ("", "-1")  # CUDA stops reading at such an item
        visible = None if named is None else len([*takewhile(lambda each: each.strip() not in none, named.split(","))])
        return {"environment": digests, "visible": visible}

    def first_file(self, places: "list[str]") -> "str | None":
        """Returns the first of `places` whose $NAMEs are all set, if it is a file. Otherwise returns None."""
        self.activated.wait()
        for place in places:
            path = re.sub(r"\$(\w+)", lambda name: self.env.get(name.group(1), "\0"), place)
            if "\0" not in path:
                path = os.path.expanduser(path)
                return path if os.path.isfile(path) else None
        return None

    def tool(self, name: str, *places: str, env: "dict[str, str] | None" = None) -> "str | None":
        """Returns the path of a tool, or None. Searches the PATH of `env`, then the folders `places`. If `env` is None,
        it searches the PATH after `activate`."""
        self.activated.wait()
        return shutil.which(name, path=os.pathsep.join(((env or self.env).get("PATH", os.defpath),) + places))

    def activate(self) -> "dict[str, str | None]":
        """Runs the inventory's `activate` line and adopts its environment. Returns {"activate": error or None}."""
        line = self.spec.get("activate")
        problem = None
        if line:
            # the variables come after the first NUL; before it comes the output of the `activate` line itself
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
        """Returns the same as environment(). Raises Refused if there is no interpreter."""
        path, env = self.environment()
        if not path:
            raise Refused(self.missing(), "correct 'python' (or 'activate') of this host in the inventory")
        return path, env

    def python(self) -> "dict[str, Any]":
        path, env = self.environment()
        if self.lacks_image():
            return {}
        found, error = ask_interpreter(path, env, self.run) if path else (None, self.missing())
        if found is None:
            answer = {"path": path or None, "version": None, "error": error}
            return {"python": answer, "torch": None, "deepspeed": None, "packages": {}}
        facts = {name: found.pop(name) for name in ("torch", "deepspeed", "packages", "unreadable")}
        return dict(facts, python=dict(found, path=path, error=None))

    def imports(self, modules: "list[str]") -> "dict[str, Any]":
        path, env = self.environment()
        return {"imports": imports(path, env, modules, self.run) if path and not self.lacks_image() else {}}

    def module(self, name: str, workdir: str) -> "str | None":
        """Returns the file that `python -m name` would run in `workdir`. If an archive holds the file, returns the
        archive. Returns None if there is no such module."""
        path, env = self.environment()
        try:  # the interpreter runs in `workdir`, because PYTHONPATH may have relative paths
            out = self.run([path, "-c", FIND_MODULE, name, workdir], env, workdir)[1] if path else ""
        except OSError:
            out = ""
        return (out.splitlines() or [""])[-1] or None

    def program(
        self, env: "dict[str, str]", name: str, arguments: "list[str]", pattern: str, *places: str
    ) -> "dict[str, str | None]":
        """Returns {"path", "version"} of a tool, or {} if the tool is missing. The version is None if no line of the
        tool's output matches `pattern`. arguments: options that make the tool print its version. places: see tool()."""
        path = self.tool(name, *places, env=env)
        try:
            return {"path": path, "version": find(pattern, run([path] + arguments, env)[1])} if path else {}
        except OSError:
            return {"path": path, "version": None}

    def compiler(self, env: "dict[str, str]", name: str, variable: str) -> "dict[str, str | None]":
        """Returns {"path", "version"} of the compiler that torch would use. That is the program in the environment
        variable `variable` if it is set, otherwise `name`. A clang's version is None: it is not comparable to gcc's."""
        found = self.program(env, (env.get(variable, "").split() or [name])[0], *GCC)
        return dict(found, version=None) if "clang" in (found.get("path") or "") else found

    def nvcc(self, env: "dict[str, str]") -> "dict[str, str | None]":
        """Returns {"path", "version"} of the nvcc that torch would use: the first one of CUDA_HOME or CUDA_PATH, the
        PATH, and /usr/local."""
        home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
        first = dict(env, PATH="%s/bin:%s" % (home, env.get("PATH", os.defpath))) if home else env
        return self.program(first, "nvcc", ["--version"], r"release (\d+(?:\.\d+)*)", "/usr/local/cuda/bin")

    def compilers(self) -> "dict[str, Any]":
        env = self.environment()[1]
        compilers = {
            "gcc": self.compiler(env, "gcc", "CC"),
            "g++": self.compiler(env, "g++", "CXX"),
            "ninja": self.program(env, "ninja", *NINJA),
        }
        return dict(versions(cuda_toolkit=self.nvcc(env)), compilers=versions(**compilers))

    def nccl(self) -> "dict[str, Any]":
        """Returns the version of the system's NCCL, from its file name. The fact "torch" has that of torch's NCCL."""
        self.activated.wait()
        folders = self.env.get("LD_LIBRARY_PATH", "").split(":") + [
            "/usr/lib/%s-linux-gnu" % platform.machine(),
            "/usr/lib64",
            "/usr/local/lib",
            "/usr/local/nccl/lib",
        ]
        found = [path for folder in folders if folder for path in sorted(glob.glob(folder + "/libnccl.so.*.*.*"))]
        return {"nccl_library": found[0].rsplit(".so.", 1)[1] if found else None}
