"""Makes the command lines that start programs in containers, and passes the environment to a program inside.

The container's first process reads variables as JSON from its stdin, so that no other user sees them: see ENTER."""

import os
import re
import tempfile

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, BinaryIO, Mapping
from fleet.protocol.environment import running

# runtimes whose containers have their own pid namespace, and outlive the client that starts them
DAEMONS = ("podman", "docker")
# A program that the image's Python runs: python3 -I -S -c ENTER ARGV... It receives bytes as latin-1 text, which needs
# no locale.
ENTER = """
import json, os, sys
given = json.loads(sys.stdin.buffer.readline().decode("ascii"))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.environb.update((name.encode("latin-1"), value.encode("latin-1")) for name, value in given["env"].items())
os.umask(given["umask"])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_RTTIME, (given["limit"],) * 2)
except Exception:
    pass
try:
    os.chdir(given["cwd"])
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.stderr.write("fleet: in the container: %s: %s\\n" % (error.filename or sys.argv[1], error.strerror))
os._exit(127)
"""


def has_nvidia() -> bool:
    return os.path.exists("/dev/nvidiactl")


def _devices(*names: str) -> "list[str]":
    return ["--device=" + path for path in ("/dev/" + name for name in names) if os.path.exists(path)]


def _mount(path: str) -> str:
    return ("--mount=type=bind,source=%s,target=%s" if ":" in path else "--volume=%s:%s") % (path, path)


def _check(runtime: str, mounts: "list[str]") -> None:
    for path in mounts:
        if set(path) >= set(",:") or runtime not in DAEMONS and re.search(r"[,:\s]", path):
            raise Refused("%s cannot mount %s" % (runtime, path), "rename that folder: without ',', ':' and blanks")


def _stored(name: "str | None", mounts: "list[str]", marks: "list[str]") -> "list[str]":
    """Returns the arguments that podman and docker have in common. name, mounts, marks: see client()."""
    given = ["run", "--rm", "--interactive", "--pull=never", "--network=host", "--ipc=host", "--log-driver=none"]
    given += ["--security-opt=label=disable", "--entrypoint="] + (["--name=" + name] if name else []) + marks
    given += ["--user=%d:%d" % (os.getuid(), os.getgid())] + [_mount(path) for path in mounts]
    return given + _devices("infiniband", "kfd", "dri")


def client(
    found: "dict[str, Any]", args: "list[str]", name: "str | None", mounts: "list[str]", marks: "list[str]"
) -> "list[str]":
    """Returns the argv that starts a container, without the argv of the program inside. Raises Refused for a path that
    the runtime cannot mount.

    found: the runtime and image, see runtimes.find(). args: the user's options for the runtime. name: the container's.
    mounts: folders, which get the same paths inside. marks: NAME=VALUE, variables of the processes inside."""
    runtime, image = found["runtime"], found["image"]
    _check(runtime, mounts)
    marks = ["--env=" + mark for mark in marks]
    if runtime == "podman":
        given = _stored(name, mounts, marks) + (["--userns=keep-id"] if os.getuid() else [])
        # processes inside have the same limits as processes without a container
        given += ["--ulimit=host"] * (not any(arg.startswith("--ulimit") for arg in args))
        given += ["--device=nvidia.com/gpu=all"] * has_nvidia()
    elif runtime == "docker":
        given = _stored(name, mounts, marks) + ["--ulimit=memlock=-1", "--ulimit=stack=67108864"]
        given += ["--gpus=all"] * has_nvidia()
    elif runtime == "apptainer":
        given = ["exec", "--cleanenv"] + marks + ["--bind=" + path for path in mounts]
        given += ["--nv"] * has_nvidia() + ["--rocm"] * os.path.exists("/dev/kfd")
    else:
        given = ["start"] + marks + ["--mount=%s:%s" % (path, path) for path in mounts]
    return [found["path"]] + given + args + [image]


def of_step(image: str, args: "list[str]", mounts: "list[str]") -> "list[str]":
    """Returns the options with which srun starts a step's tasks in a container. They are those of Slurm's plugin pyxis.
    They also mount the home folder, which has ~/.fleet. A node may lack some of `mounts`. Raises Refused for a path
    that pyxis cannot mount."""
    _check("pyxis", mounts)
    given = ["--container-image=" + image, "--container-mount-home", "--container-workdir=/"]
    given += ["--no-container-remap-root"] + ["--container-mounts=%s:%s:nofail" % (path, path) for path in mounts]
    return given + args


def inside(argv: "list[str]", python: "str | None", cwd: str) -> "list[str]":
    """Returns the argv of a container's first process, which runs `argv` in the environment of the image's interpreter
    `python`."""
    return [python or "python3", "-I", "-S", "-c", ENTER] + running(None) + [python or "", cwd] + argv


def sealed(env: "Mapping[bytes, bytes]", cwd: str, umask: int, limit: int) -> "BinaryIO":
    """Returns an unnamed file with what ENTER reads from stdin. env: variables for the program inside. umask: as for
    os.umask(). limit: RLIMIT_RTTIME, which marks the processes of a run (run/marks.py); -1 means no limit."""
    text = {name.decode("latin-1"): value.decode("latin-1") for name, value in env.items()}
    file = tempfile.TemporaryFile()  # noqa: SIM115 (its reader closes it)
    file.write(json.dumps({"env": text, "cwd": cwd, "umask": umask, "limit": limit}).encode() + b"\n")
    file.seek(0)
    return file
