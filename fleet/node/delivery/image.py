"""Looks for a container image in this node's runtime, saves it to a file, or loads it from one.

spec: {"python", "workdir", "activate", "env", "do": "look" | "save" | "load", "image": its name, "id": the one that it
is to have, or null, "file": of the archive, null to look, "mark"}. J at the end: {"event": "done", "runtime",
"id": hex or null where the image is missing, "stored": whether the runtime has the wanted id, under any name}; or
{"event": "failed", "message", "hint"}. End of file on stdin ends the runtime's command."""

import os

from fleet.node.base.child_processes import begin_marked, end_marked, finish_marked
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import remove_file
from fleet.node.base.types import Any, images
from fleet.node.facts.ask import last_line
from fleet.node.facts.runtimes import argv, output, require
from fleet.node.facts.tools import Tools

GRACE_SECONDS, ANY_SECONDS = 5.0, 1e9


def run(found: "dict[str, Any]", env: "dict[str, str]", what: str, **values: str) -> None:
    """Runs a command of the runtime to its end, however long it takes. Raises Refused if it fails."""
    status, _, err = output(argv(found["runtime"], found["path"], what, **values), ANY_SECONDS, env)
    if status != 0:
        reason = last_line(err) or "exit status %d" % status
        raise Refused("%s %s: %s" % (found["runtime"], what, reason), "is there room for its storage? df -h")


def save(image: str, file: str, env: "dict[str, str]") -> None:
    """Saves an image, but where an earlier sync has saved it."""
    os.makedirs(os.path.dirname(file), 0o700, exist_ok=True)
    if not os.path.exists(file):
        remove_file(file + ".part")  # of a sync that was interrupted: podman changes no archive
        run(require(image, env), env, "save", image=image, file=file + ".part")
        os.rename(file + ".part", file)


def load(image: str, file: str, wanted: str, env: "dict[str, str]") -> None:
    """Loads an image where its id is missing, and gives it its name. Raises Refused where it has another id then."""
    if not require(wanted, env)["id"]:
        run(require(image, env), env, "load", file=file)
    stored = require(wanted, env)
    if not stored["id"]:
        raise Refused("%s loaded %s with another id than %s" % (stored["runtime"], image, wanted[:12]), None)
    if require(image, env)["id"] != wanted:
        run(stored, env, "tag", id=wanted, image=image)


def work(spec: "images.ImageSpec") -> "dict[str, Any]":
    tools = Tools(spec)
    tools.activate()
    env, image, wanted = dict(tools.env, FLEET_EXEC_ID=spec["mark"]), spec["image"], spec["id"]
    file = os.path.expanduser(spec["file"] or "")
    if spec["do"] == "save":
        save(image, file, env)
    elif spec["do"] == "load" and wanted:
        load(image, file, wanted, env)
    found = require(image, env)
    stored = bool(wanted and require(wanted, env)["id"])
    return {"event": "done", "runtime": found["runtime"], "id": found["id"], "stored": stored}


def main() -> None:
    spec = begin_marked(lambda spec: end_marked(spec, GRACE_SECONDS))
    try:
        answer: dict[str, Any] = work(spec)
    except (Refused, OSError) as error:
        answer = dict(failed(error))
    finish_marked(spec, answer)
