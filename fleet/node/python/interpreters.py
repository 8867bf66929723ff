"""The interpreters that this node has, and which of them has torch. torch is not imported for that.

Each place and each interpreter has a thread of its own: what lies on a file system that hangs is left out.
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
LOOK_SECONDS, ASK_SECONDS = 3.0, 20.0  # two dozen that start at once take a busy node a while
CONDAS = ("conda", "miniconda3", "anaconda3", "miniforge3", "mambaforge")
OF_HOME = (".venv", "venv", ".virtualenvs/*", ".conda/envs/*", ".pyenv/versions/*")


def places(path: str, workdir: "str | None") -> "list[str]":
    """Patterns of the folders that interpreters lie in, likely ones first. path: a PATH."""
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
    """{pattern: {what it is: path}}: an environment is one interpreter, and so is what several names lead to."""
    found: dict[str, str] = {}
    for folder in sorted(glob.glob(pattern))[:MOST]:
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if re.match(r"python(3(\.\d+)?)?$", name) and os.access(path, os.X_OK):
                own = os.path.exists(os.path.join(folder, "../pyvenv.cfg"))
                found.setdefault(folder if own else os.path.realpath(path), path)
    return {pattern: found}


def ask(path: str, env: "dict[str, str]") -> "dict[str, Any]":
    """{path: what is reported of it}, nothing for one that does not work."""
    answer = ask_interpreter(path, env)[0]
    if answer is None:
        return {}
    torch = answer["torch"] or {}
    interpreter = {"path": path, "version": answer["version"], "torch": torch.get("version"), "cuda": torch.get("cuda")}
    return {path: interpreter}


def interpreters(env: "dict[str, str]", workdir: "str | None") -> "list[dict[str, Any]]":
    """[{"path", "version", "torch": its version | null, "cuda": what it is built for | null}], with torch first."""
    # the home folder may be what hangs
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
