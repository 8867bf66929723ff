"""Runs the container runtimes of a node: lists, saves and loads images, and finds the runtime that has an image.

An image's id is the sha256 of its configuration in hexadecimal. It is the same in podman and docker, on every node, and
after `save` and `load`. A docker that keeps images in containerd's store prints the sha256 of a manifest instead. An id
of a configuration cannot be compared with one of a manifest. The id of a .sif or .sqsh file is the file's sha256."""

import hashlib
import os
import shutil
import subprocess
import time
from contextlib import suppress

from fleet.node.base.errors import Refused
from fleet.node.base.files import file_digest, version_of
from fleet.node.base.run_folder import NODE, read_json, write_json
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import Any, Mapping
from fleet.node.base.wire import encode, start_thread
from fleet.node.facts.ask import OUTPUT_LIMIT, last_line
from fleet.node.facts.system import find as first_match
from fleet.protocol.state import IMAGES, below_home

SECONDS = 10.0  # time limit of a query
SETTLED = 2.1  # seconds after which a later change gets another ctime, even if the disk stores whole seconds
SILENT = 126  # the status of a runtime that does not respond, or cannot be started
# operations of runtimes that store images. "id" prints an image's id, and fails if the image is missing. "list" fails
# only if the runtime does not work
STORED = {
    "version": ("--version",),
    "id": ("image", "inspect", "--format", "{{.Id}} {{.RepoDigests}}", "{image}"),
    "list": ("images", "--quiet"),
    "save": ("save", "--output", "{file}", "{image}"),
    "load": ("load", "--input", "{file}"),
    "tag": ("tag", "{id}", "{image}"),
}
# name -> its operations and their arguments, in the order in which a node's runtimes are tried
RUNTIMES: "dict[str, dict[str, tuple[str, ...]]]" = {
    "podman": STORED,
    "docker": STORED,
    "apptainer": {"version": ("--version",)},
    "enroot": {"version": ("version",)},
}
FILES = {".sif": "apptainer", ".sqsh": "enroot"}  # runtimes whose images are plain files


def file_runtime(image: str) -> "str | None":
    """Returns the runtime for an image that is a plain file, or None for an image that a runtime stores."""
    return FILES.get(os.path.splitext(image)[1])


def argv(name: str, path: str, what: str, **values: str) -> "list[str]":
    """Returns the argv of an operation `what` of a runtime: "version", "id", "list", "save", "load" or "tag". path: the
    runtime's program. values: the texts for {image}, {file} and {id}."""
    return [path] + [values.get(part[1:-1], part) if part[:1] == "{" else part for part in RUNTIMES[name][what]]


def output(
    command: "list[str]", seconds: float = SECONDS, env: "Mapping[str, str] | None" = None
) -> "tuple[int, str, str]":
    """Returns (status, stdout, stderr) of a runtime's command. Kills a command that does not end within `seconds`. Then
    the status is SILENT, and stderr is the reason."""
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
        start_thread(child.wait)  # in a thread: the command may hang in the kernel
        return SILENT, "", "no answer within %d s" % SECONDS
    for reader in readers:
        reader.join(1.0)  # a child of the command may keep its output open
    return status, texts.get(child.stdout, ""), texts.get(child.stderr, "")


def known_digest(file: str) -> str:
    """Returns the sha256 of an image file. Stores the digest with the file's version, as reading an image takes
    long."""
    key = hashlib.sha256(encode("%s %s" % (NODE, os.path.realpath(file)))).hexdigest()
    info, note = os.stat(file), below_home(IMAGES, key + ".json")
    version = version_of(info)
    kept: dict[str, Any] = {}
    with suppress(OSError, Refused):  # ~/.fleet may be another user's folder
        own_home(IMAGES)
        kept = read_json(note)
    if kept.get("version") != version or "digest" not in kept:
        kept = {"version": version, "digest": file_digest(file)}
        if version_of(os.stat(file)) == version and time.time() - info.st_ctime > SETTLED:
            with suppress(OSError, Refused):
                own_home(IMAGES)
                write_json(note, kept)
    return str(kept["digest"])


def image_id(name: str, path: str, image: str, env: "Any" = None, workdir: "str | None" = None) -> "dict[str, Any]":
    """Returns {"id": hex}, and "of": "manifest" if the id is that of a manifest. Returns {"id": None} if the runtime
    does not have the image. Returns {"why": text} if it is unknown whether the runtime has the image. name, path: the
    runtime's name and program. workdir: the folder to which an image file's relative path refers."""
    if file_runtime(image):
        file = os.path.join(os.path.expanduser(workdir or "~"), os.path.expanduser(image))
        return {"id": known_digest(file) if os.path.exists(file) else None}
    until = time.monotonic() + SECONDS
    status, out, err = output(argv(name, path, "id", image=image), SECONDS, env)
    if status == 0:
        found = first_match(r"^(?:sha256:)?([0-9a-f]{64})(?: |$)", out)
        if not found:
            return {"why": "it prints no image id"}
        return {"id": found, "of": "manifest"} if "@sha256:" + found in out else {"id": found}
    if status != SILENT:  # either the image is missing, or the runtime does not work: "list" shows which
        status, _, err = output(argv(name, path, "list"), until - time.monotonic(), env)
    return {"id": None} if status == 0 else {"why": last_line(err) or "exit status %d" % status}


def to_install(image: str) -> str:
    """Returns the hint for a node without a runtime for this image."""
    return "install %s there" % file_runtime(image) if file_runtime(image) else "there: apt install podman crun"


def find(image: str, env: "Mapping[str, str] | None" = None, workdir: "str | None" = None) -> "dict[str, Any] | None":
    """Returns {"runtime", "path": its program, "image", "id": hex or None} of the first runtime here that has the
    image. If no runtime has the image, returns the same of the first runtime that could have it. Returns None if there
    is no such runtime. If the id is unknown, "why" has the reason and "id" is missing."""
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
    """Returns the same as find(). Raises Refused if there is no runtime for the image, or if the runtime does not
    work."""
    answer = find(image, env, workdir)
    if answer is None:
        raise Refused("no container runtime for image %s" % image, to_install(image))
    return known(answer)


def known(answer: "dict[str, Any]") -> "dict[str, Any]":
    """Returns `answer`, a result of find(). Raises Refused if it is unknown whether the runtime has the image."""
    if "id" not in answer:
        why = "%s does not answer: %s" % (answer["runtime"], answer["why"])
        raise Refused(why, "try it there: %s images" % answer["path"])
    return answer
