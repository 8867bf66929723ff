"""The environment of the training interpreter, found by the text that protocol/environment.py has."""

import os
import re
import subprocess

from fleet.node.base.types import Any
from fleet.node.base.wire import encode
from fleet.protocol.environment import PRINT_SETTINGS, SET


def working_folder(given: "str | None") -> str:
    """By its names, as `cd` has it; no file system is read, for it may hang."""
    return os.path.normpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(given or "~")))


def job_env(workdir: "str | None", spec: "Any") -> "dict[bytes, bytes]":
    """Returns a run's first environment: this node's but for what spec's "unset" matches, then spec's "env" over it,
    then "env_expand"."""
    unset = re.compile(encode(spec.get("unset") or "(?!)"))
    env = {name: value for name, value in os.environb.items() if not unset.fullmatch(name)}
    env[b"PWD"] = encode(working_folder(workdir))
    env.setdefault(b"PYTHONUNBUFFERED", b"1")  # lines come when they are printed, and a stop loses none
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
    """Make env that of the interpreter; returns its path, empty where there is none. workdir: where a relative one
    starts from."""
    argv = ["/bin/sh", "-c", PRINT_SETTINGS, "sh", python or "", workdir or "~"]
    path, *values = subprocess.check_output(argv, env=env, stdin=subprocess.DEVNULL).split(b"\0")
    env.update((name.encode(), value) for name, value in zip(SET, values) if value)
    return path
