"""Knows the container runtimes of a node: how each lists, saves and loads images, and which of them has an image.

An image's id is the sha256 of its configuration in hexadecimal, the same in podman and docker, on every node and after
`save` and `load`. Of a .sif or .sqsh file it is the file's own sha256."""

import hashlib
import os
import shutil
import subprocess
import time

from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Mapping
from fleet.node.base.wire import start_thread
from fleet.node.facts.ask import OUTPUT_LIMIT, last_line
from fleet.node.facts.system import find as first_match

SECONDS = 10.0
# "id" prints an image's id and fails where it is missing, or nothing is known; "list" fails in the second case alone
STORED = {
    "id": ("image", "inspect", "--format", "{{.Id}}", "{image}"),
    "list": ("images", "--quiet"),
    "save": ("save", "--output", "{file}", "{image}"),
    "load": ("load", "--input", "{file}"),
    "tag": ("tag", "{id}", "{image}"),
}
# name -> how its images are handled, in the order in which a node's runtimes are looked for
RUNTIMES: "dict[str, dict[str, tuple[str, ...]]]" = {"podman": STORED, "docker": STORED, "apptainer": {}, "enroot": {}}
# whose images are plain files
FILES = {".sif": "apptainer", ".sqsh": "enroot"}
VERSION = {"enroot": ("version",)}


def file_runtime(image: str) -> "str | None":
    """Returns the runtime whose image is that plain file; None for an image that a runtime stores."""
    return FILES.get(os.path.splitext(image)[1])


def file_path(image: str, workdir: "str | None") -> str:
    """Returns where the plain file of an image is: from the workdir, where its path is relative."""
    return os.path.join(os.path.expanduser(workdir or "~"), os.path.expanduser(image))


def argv(name: str, path: str, what: str, **values: str) -> "list[str]":
    """Returns the argv of "id", "list", "save", "load" or "tag" of a runtime. path: of its program. values: of `image`,
    `file`, `id`."""
    return [path] + [values.get(part[1:-1], part) if part[:1] == "{" else part for part in RUNTIMES[name][what]]


def output(
    command: "list[str]", seconds: float, env: "Mapping[str, str] | None" = None
) -> "tuple[int, str, str] | None":
    """Returns (status, stdout, stderr) of a runtime; None where it does not end in time: then it is killed. Raises
    OSError where it cannot be started."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    texts: dict[Any, str] = {}
    streams: Any = (child.stdout, child.stderr)

    def read(stream: "Any") -> None:
        with stream:
            texts[stream] = stream.read(OUTPUT_LIMIT).decode("utf-8", "replace")

    readers = [start_thread(read, stream) for stream in streams]
    try:
        status = child.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        child.kill()
        start_thread(child.wait)  # one that hangs in the kernel does not end yet
        return None
    for reader in readers:
        reader.join(1.0)  # a child of its own may hold them open
    out, err = [texts.get(stream, "") for stream in streams]
    return status, out, err


def _until(name: str, path: str, what: str, until: float, env: "Any", **values: str) -> "tuple[int, str, str]":
    """Returns what output() does; its status is 126 where the runtime does not answer."""
    try:
        answer = output(argv(name, path, what, **values), until - time.monotonic(), env)
        return answer or (126, "", "no answer within %d s" % SECONDS)
    except OSError as error:
        return 126, "", str(error)


def version(name: str, path: str, env: "Mapping[str, str] | None" = None) -> "str | None":
    """Returns the version that a runtime prints, None where it does not answer."""
    try:
        answer = output([path] + list(VERSION.get(name, ("--version",))), SECONDS, env)
    except OSError:
        return None
    return first_match(r"(\d+(?:\.\d+)+)", answer[1]) if answer else None


def image_id(name: str, path: str, image: str, env: "Any" = None, workdir: "str | None" = None) -> "dict[str, Any]":
    """Returns {"id": hex}, {"id": None} where the runtime does not have the image, or {"why": text} where that is not
    known."""
    until = time.monotonic() + SECONDS
    if file_runtime(image):
        return _file_id(file_path(image, workdir), until)
    status, out, err = _until(name, path, "id", until, env, image=image)
    if status == 0:
        found = first_match(r"^(?:sha256:)?([0-9a-f]{64})$", out)
        return {"id": found} if found else {"why": "it prints no image id"}
    if status != 126:  # missing, or the runtime does not work
        status, _, err = _until(name, path, "list", until, env)
    return {"id": None} if status == 0 else {"why": last_line(err) or "exit status %d" % status}


def _file_id(path: str, until: float) -> "dict[str, Any]":
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            block = file.read(1 << 20)
            while block and time.monotonic() < until:
                digest.update(block)
                block = file.read(1 << 20)
    except (FileNotFoundError, NotADirectoryError):
        return {"id": None}
    except OSError as error:
        return {"why": str(error)}
    return {"why": "its digest takes longer than %d s" % SECONDS} if block else {"id": digest.hexdigest()}


def find(image: str, env: "Mapping[str, str] | None" = None, workdir: "str | None" = None) -> "dict[str, Any] | None":
    """Returns {"runtime", "path", "image", "id": hex or None} of the first runtime here that has the image, else of the
    first that could have it; None where there is no such runtime. Without "id" it is not known: see "why"."""
    only, first = file_runtime(image), None
    for name in RUNTIMES:
        path = shutil.which(name, path=env.get("PATH", os.defpath) if env else None)
        if path and (name == only or only is None and RUNTIMES[name]):
            found = dict({"runtime": name, "path": path, "image": image}, **image_id(name, path, image, env, workdir))
            if found.get("id"):
                return found
            first = first or found
    return first


def require(image: str, env: "Mapping[str, str] | None" = None, workdir: "str | None" = None) -> "dict[str, Any]":
    """Returns what find() does. Raises Refused where there is no runtime for the image, or it does not answer."""
    answer = find(image, env, workdir)
    if answer is None:
        raise Refused(
            "no container runtime for %s" % image, "install %s there" % (file_runtime(image) or "podman or docker")
        )
    if "id" not in answer:
        raise Refused(
            "%s does not answer: %s" % (answer["runtime"], answer["why"]), "try there: %s images" % answer["path"]
        )
    return answer
