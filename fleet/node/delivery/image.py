"""Looks for a container image in this node's runtime, saves it to a file, or loads it from one.

spec: {"python", "workdir", "activate", "env": see Tools, "do": "look" | "save" | "load", "image": its name, "ids": {id:
"config" | "manifest"}, of which the image must have one, or {} if the ids are not known yet, "file": the archive, or
null for "look", "mark": see child_processes.py}. The last J is {"event": "done", "runtime", "id": hex, or null if the
image is missing, "of": "config" | "manifest" (see runtimes.py), "stored": whether the runtime has one of the ids, under
any name, "archive": the ids of the saved image}; or {"event": "failed", "message", "hint"}. If stdin ends, the program
ends the runtime's command."""

import os

from fleet.node.base.child_processes import begin_marked, end_marked, finish_marked
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import open_regular, remove_file
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import Any, Mapping, images
from fleet.node.delivery.archive import read_archive
from fleet.node.facts.ask import last_line
from fleet.node.facts.runtimes import argv, image_id, known, output, require
from fleet.node.facts.tools import Tools
from fleet.protocol.state import IMAGES

GRACE_SECONDS, ANY_SECONDS = 5.0, 1e9


def run(found: "dict[str, Any]", env: "dict[str, str]", what: str, **values: str) -> None:
    """Runs a command of the runtime to its end, however long it takes. Raises Refused if it fails."""
    status, _, err = output(argv(found["runtime"], found["path"], what, **values), ANY_SECONDS, env)
    if status != 0:
        reason = last_line(err) or "exit status %d" % status
        raise Refused("%s %s: %s" % (found["runtime"], what, reason), "is there room for its storage? df -h")


def archived(file: str) -> "dict[str, str]":
    """Returns the ids of a saved image, or {} if the archive is missing or incomplete."""
    try:
        with open_regular(file) as archive:
            return read_archive(archive)[1]
    except (OSError, Refused):
        return {}


def save(image: str, file: str, ids: "Mapping[str, str]", env: "dict[str, str]") -> None:
    """Saves an image to a file, unless an earlier sync has saved it. Raises Refused if another image has the name by
    then. ids: the ids that the image may have."""
    own_home(IMAGES, os.path.basename(os.path.dirname(file)))
    if archived(file):
        return
    for left in (file, file + ".part"):
        remove_file(left)  # an interrupted sync may have left it, and podman does not write to an existing archive
    run(require(image, env), env, "save", image=image, file=file + ".part")
    if require(image, env)["id"] not in ids:
        remove_file(file + ".part")
        raise Refused("%s was given to another image meanwhile" % image, "run it again")
    os.rename(file + ".part", file)


def stored(found: "dict[str, Any]", ids: "Mapping[str, str]", env: "dict[str, str]") -> "str | None":
    """Returns the one of `ids` that the runtime has, under any name, or None. found: see runtimes.find()."""
    for wanted in ids:
        if known(dict(found, **image_id(found["runtime"], found["path"], wanted, env)))["id"] in ids:
            return wanted
    return None


def load(image: str, file: str, ids: "Mapping[str, str]", env: "dict[str, str]") -> None:
    """Loads an image from a file, unless the runtime has one of the ids. Gives the image its name. Raises Refused if
    the loaded image has another id. (The id of a manifest may differ, as the runtime may make the manifest itself.)"""
    found = require(image, env)
    if found["id"] in ids:
        return
    if not stored(found, ids, env):
        run(found, env, "load", file=file)
        found = require(image, env)
    wanted = stored(found, ids, env)
    if wanted and found["id"] not in ids:
        run(found, env, "tag", id=wanted, image=image)
    elif not wanted and (found["id"] is None or found.get("of") != "manifest"):
        raise Refused("%s loaded %s with another id than %s" % (found["runtime"], image, min(ids)[:12]), None)


def work(spec: "images.ImageSpec") -> "dict[str, Any]":
    tools = Tools(spec)
    tools.activate()
    env, image, ids = dict(tools.env, FLEET_EXEC_ID=spec["mark"]), spec["image"], spec["ids"]
    file = os.path.expanduser(spec["file"] or "")
    if spec["do"] == "save":
        save(image, file, ids, env)
    elif spec["do"] == "load":
        load(image, file, ids, env)
    found = require(image, env)
    return {
        "event": "done",
        "runtime": found["runtime"],
        "id": found["id"],
        "of": found.get("of", "config"),
        "stored": found["id"] in ids or stored(found, ids, env) is not None,
        "archive": archived(file) if spec["do"] == "save" else {},
    }


def main() -> None:
    spec = begin_marked(lambda spec: end_marked(spec, GRACE_SECONDS))
    try:
        answer: dict[str, Any] = work(spec)
    except (Refused, OSError) as error:
        answer = dict(failed(error))
    finish_marked(spec, answer)
