"""Finds the Python interpreters of this node, and which of them has torch, without importing it.

Each folder and each interpreter has a thread of its own, so that a file system that hangs delays no other.
"""

import glob
import os
import re
from functools import partial

from fleet.node.base.gather import gather
from fleet.node.base.types import Any
from fleet.node.facts.ask import ask_interpreter
from fleet.node.facts.system import text

MOST = 24
LOOK_SECONDS, ASK_SECONDS = 3.0, 20.0  # a busy node takes a while to start two dozen at once
CONDAS = ("conda", "miniconda3", "anaconda3", "miniforge3", "mambaforge")
OF_HOME = (".venv", "venv", ".virtualenvs/*", ".conda/envs/*", ".pyenv/versions/*")


def places(path: str, workdir: "str | None") -> "list[str]":
    """Returns patterns of folders that may have interpreters, likely ones first. path: a PATH."""
    home = os.path.expanduser("~")
    roots = [os.path.join(os.path.expanduser(workdir or "~"), name) for name in (".venv", "venv")]
    for folder in (home, "/opt"):
        for name in CONDAS:
            roots += [os.path.join(folder, name), os.path.join(folder, name, "envs/*")]
    roots += [os.path.join(home, name) for name in OF_HOME]
    roots += text(home + "/.conda/environments.txt").splitlines()
    # pyenv's shims are scripts that start what lies next to them
    on_path = [re.sub("/shims$", "/versions/*/bin", folder) for folder in path.split(os.pathsep)]
    return on_path + [root + "/bin" for root in roots] + ["/usr/local/bin", "/usr/bin"]


def look(pattern: str) -> "dict[str, dict[str, str]]":
    """Returns {pattern: {identity: path}}. The identity is the folder of an environment, or the real path, so that an
    interpreter with several names counts once."""
    found: dict[str, str] = {}
    for folder in sorted(glob.glob(pattern))[:MOST]:
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if re.match(r"python(3(\.\d+)?)?$", name) and os.access(path, os.X_OK):
                own = os.path.exists(os.path.join(folder, "../pyvenv.cfg"))
                found.setdefault(folder if own else os.path.realpath(path), path)
    return {pattern: found}


def ask(path: str, env: "dict[str, str]") -> "dict[str, Any]":
    """Returns {path: its report}, {} for an interpreter that does not work."""
    answer = ask_interpreter(path, env)[0]
    if answer is None:
        return {}
    torch = answer["torch"] or {}
    interpreter = {"path": path, "version": answer["version"], "torch": torch.get("version"), "cuda": torch.get("cuda")}
    return {path: interpreter}


def interpreters(env: "dict[str, str]", workdir: "str | None") -> "list[dict[str, Any]]":
    """Returns [{"path", "version", "torch": its version | null, "cuda": the CUDA version of torch | null}]. Those with
    torch come first."""
    # in a thread, too, as the home folder may hang
    listed = gather([("places", lambda: {"places": places(env.get("PATH", os.defpath), workdir)})], LOOK_SECONDS)
    patterns = listed.get("places", [])
    there = gather([(pattern, partial(look, pattern)) for pattern in patterns], LOOK_SECONDS)
    known: dict[str, str] = {}
    for pattern in patterns:
        for what, path in there.get(pattern, {}).items():
            known.setdefault(what, path)
    paths = list(known.values())[:MOST]
    answers = gather([(path, partial(ask, path, env)) for path in paths], ASK_SECONDS)
    return sorted((answers[path] for path in paths if path in answers), key=lambda one: not one["torch"])
