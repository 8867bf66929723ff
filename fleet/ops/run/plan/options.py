"""The ids of runs, and the reading of --env and --env-file."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from fleet.engines.env_file import read_env_file
from fleet.engines.slips import starts_another
from fleet.errors import UsageError
from fleet.protocol.state import LONGEST_NAME
from fleet.requests.variables import check_variable

SCRIPTS = (".py", ".sh", ".bash")


def name_of(script: str, args: Sequence[str]) -> str:
    """Returns the name of a run: after an interpreter or a launcher it is the script that counts."""
    if not starts_another(script):
        return script
    module = next((args[at + 1] for at, arg in enumerate(args[:-1]) if arg == "-m"), script)
    return next((arg for arg in args if PurePosixPath(arg).suffix in SCRIPTS), module)


def new_run_id(script: str, name: str | None, now: float | None = None, token: str | None = None) -> str:
    """`<name or script stem>-YYYYMMDD-HHMMSS-<4 hex>`, only characters that are safe in any file name."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name or PurePosixPath(script).stem).strip("-.")[:LONGEST_NAME] or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stem}-{stamp}-{token or secrets.token_hex(2)}"


def read_env(
    files: Iterable[Path], literal: Iterable[str], expand: Iterable[str], head: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """(values as they are, values the node expands). Later wins: --env-file, then --env; --env-expand over both.

    `K=V` is literal; `K` alone takes the head's value and is an error where the head has none. Messages never
    hold a value.
    """
    values: dict[str, str] = {}
    for path in files:
        values.update(read_env_file(path))
    for item in literal:
        name, equals, value = item.partition("=")
        value = value if equals else head.get(name, "")
        check_variable("--env", name, value)
        if not equals and name not in head:
            raise UsageError(f"--env {name}: not set here", hint=f"export {name}, or give --env {name}=VALUE")
        values[name] = value
    expanded: dict[str, str] = {}
    for item in expand:
        name, equals, value = item.partition("=")
        check_variable("--env-expand", name, value)
        if not equals:
            raise UsageError(f"--env-expand {name}: no value", hint=f"--env-expand '{name}=$HOME/data'")
        expanded[name] = value
        values.pop(name, None)
    return values, expanded
