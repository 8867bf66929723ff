"""Knows the container runtimes of a node: how each lists, saves and loads images, and which of them has an image.

An image's id is the sha256 of its configuration in hexadecimal, the same in podman and docker, on every node and after
`save` and `load`. A docker that keeps images in containerd's store prints the sha256 of a manifest instead: the two
cannot be compared. Of a .sif or .sqsh file it is the file's own sha256."""

import os
import shutil
import subprocess
import time

from fleet.node.base.errors import Refused
from fleet.node.base.files import file_digest
from fleet.node.base.types import Any, Mapping
from fleet.node.base.wire import start_thread
from fleet.node.facts.ask import OUTPUT_LIMIT, last_line
from fleet.node.facts.system import find as first_match

SECONDS = 10.0
SILENT = 126  # the status of a runtime that does not answer, or cannot be started
# "id" prints an image's id and fails where it is missing, or nothing is known; "list" fails in the second case alone
STORED = {
    "version": ("--version",),
    "id": ("image", "inspect", "--format", "{{.Id}} {{.RepoDigests}}", "{image}"),
    "list": ("images", "--quiet"),
    "save": ("save", "--output", "{file}", "{image}"),
    "load": ("load", "--input", "{file}"),
    "tag": ("tag", "{id}", "{image}"),
}
# name -> the argv of what it does, in the order in which a node's runtimes are looked for
RUNTIMES: "dict[str, dict[str, tuple[str, ...]]]" = {
    "podman": STORED,
    "docker": STORED,
    "apptainer": {"version": ("--version",)},
    "enroot": {"version": ("version",)},
}
FILES = {".sif": "apptainer", ".sqsh": "enroot"}  # whose images are plain files


def file_runtime(image: str) -> "str | None":
    """Returns the runtime whose image is that plain file; None for an image that a runtime stores."""
    return FILES.get(os.path.splitext(image)[1])


def argv(name: str, path: str, what: str, **values: str) -> "list[str]":
    """Returns the argv of "version", "id", "list", "save", "load" or "tag" of a runtime. path: of its program. values:
    of `image`, `file`, `id`."""
    return [path] + [values.get(part[1:-1], part) if part[:1] == "{" else part for part in RUNTIMES[name][what]]


def output(
    command: "list[str]", seconds: float = SECONDS, env: "Mapping[str, str] | None" = None
) -> "tuple[int, str, str]":
    """Returns (status, stdout, stderr) of a runtime. It is killed where it does not end in time: SILENT, and why."""
    try:
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return SILENT, "", str(error)
    texts: dict[Any, str] = {}

    def read(stream: "Any") -> None:
        with stream:
            texts[stream] = stream.read(OUTPUT_LIMIT).decode("utf-8", "replace")

    readers = [start_thread(read, stream) for stream in (child.stdout, child.stderr)]
    try:
        status = child.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        child.kill()
        start_thread(child.wait)  # one that hangs in the kernel does not end yet
        return SILENT, "", "no answer within %d s" % SECONDS
    for reader in readers:
        reader.join(1.0)  # a child of its own may hold them open
    return status, texts.get(child.stdout, ""), texts.get(child.stderr, "")


def image_id(name: str, path: str, image: str, env: "Any" = None, workdir: "str | None" = None) -> "dict[str, Any]":
    """Returns {"id": hex}, with "of": "manifest" where it is none of a configuration; {"id": None} where the runtime
    does not have the image, or {"why": text} where that is not known."""
    if file_runtime(image):
        file = os.path.join(os.path.expanduser(workdir or "~"), os.path.expanduser(image))
        return {"id": file_digest(file) if os.path.exists(file) else None}
    until = time.monotonic() + SECONDS
    status, out, err = output(argv(name, path, "id", image=image), SECONDS, env)
    if status == 0:
        found = first_match(r"^(?:sha256:)?([0-9a-f]{64})(?: |$)", out)
        if not found:
            return {"why": "it prints no image id"}
        return {"id": found, "of": "manifest"} if "@sha256:" + found in out else {"id": found}
    if status != SILENT:  # missing, or the runtime does not work
        status, _, err = output(argv(name, path, "list"), until - time.monotonic(), env)
    return {"id": None} if status == 0 else {"why": last_line(err) or "exit status %d" % status}


def to_install(image: str) -> str:
    """Returns the hint where no runtime can have this image."""
    return "install %s there" % file_runtime(image) if file_runtime(image) else "there: apt install podman crun"


def find(image: str, env: "Mapping[str, str] | None" = None, workdir: "str | None" = None) -> "dict[str, Any] | None":
    """Returns {"runtime", "path", "image", "id": hex or None} of the first runtime here that has the image, else of the
    first that could have it; None where there is no such runtime. Without "id" it is not known: see "why"."""
    only, first = file_runtime(image), None
    for name in RUNTIMES:
        path = shutil.which(name, path=env.get("PATH", os.defpath) if env else None)
        if path and (name == only or only is None and "load" in RUNTIMES[name]):
            found = dict({"runtime": name, "path": path, "image": image}, **image_id(name, path, image, env, workdir))
            if found.get("id"):
                return found
            first = first or found
    return first


def require(image: str, env: "Mapping[str, str] | None" = None, workdir: "str | None" = None) -> "dict[str, Any]":
    """Returns what find() does. Raises Refused where there is no runtime for the image, or it does not answer."""
    answer = find(image, env, workdir)
    if answer is None:
        raise Refused("no container runtime for image %s" % image, to_install(image))
    return known(answer)


def known(answer: "dict[str, Any]") -> "dict[str, Any]":
    """Returns what find() found. Raises Refused where it is not known whether the runtime has the image."""
    if "id" not in answer:
        why = "%s does not answer: %s" % (answer["runtime"], answer["why"])
        raise Refused(why, "try it there: %s images" % answer["path"])
    return answer
