"""Finds the environment of the training interpreter, with the shell text of protocol/environment.py."""

import os
import re
import subprocess

from fleet.node.base.types import Any
from fleet.node.base.wire import encode
from fleet.protocol.environment import PRINT_SETTINGS, SET


def working_folder(given: "str | None") -> str:
    """Returns the absolute path of a working folder. given: the path, relative to the home; None means the home. Does
    not resolve links, as reading a file system may hang."""
    return os.path.normpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(given or "~")))


def job_env(workdir: "str | None", spec: "Any") -> "dict[bytes, bytes]":
    """Returns the environment with which a run begins. It is this node's, without variables that the spec's pattern
    "unset" matches. Then the spec's "env" adds or replaces variables. At last "env_expand" does so, too: in its values
    $NAME stands for a variable, and ~ for the home."""
    unset = re.compile(encode(spec.get("unset") or "(?!)"))
    env = {name: value for name, value in os.environb.items() if not unset.fullmatch(name)}
    env[b"PWD"] = encode(working_folder(workdir))
    env.setdefault(b"PYTHONUNBUFFERED", b"1")  # lines are written at once, so a stop loses none
    for name, value in (spec.get("env") or {}).items():
        env[encode(name)] = encode(value)
    for name, value in (spec.get("env_expand") or {}).items():
        env[encode(name)] = re.sub(
            rb"\$(?:(\w+)|\{(\w+)\})",
            lambda found: env.get(found.group(1) or found.group(2), b""),
            encode(os.path.expanduser(value)),
        )
    return env


def enter(env: "dict[bytes, bytes]", python: "str | None", workdir: "str | None") -> bytes:
    """Changes `env` to the environment of the training interpreter. Returns the interpreter's path, or b"" if there is
    none. python: as in the inventory; None means python3, or else python. workdir: the folder to which a relative path
    refers."""
    argv = ["/bin/sh", "-c", PRINT_SETTINGS, "sh", python or "", workdir or "~"]
    path, *values = subprocess.check_output(argv, env=env, stdin=subprocess.DEVNULL).split(b"\0")
    env.update((name.encode(), value) for name, value in zip(SET, values) if value)
    return path
