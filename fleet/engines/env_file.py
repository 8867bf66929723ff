"""Reads and writes files of variables: those of --env-file, and DeepSpeed's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleet.errors import UsageError
from fleet.node.base.errors import on_os_error
from fleet.own import read_given
from fleet.requests.variables import check_variable


def read_env_file(path: Path, what: str = "--env-file", strip: bool = False) -> dict[str, str]:
    """Returns the variables of `KEY=VALUE` lines. `export` may precede KEY, and lines that begin with `#` are comments.

    The value is the exact text after the first `=`, without quotes that enclose all of it. what: the file's name in
    messages. strip: removes blanks around names and values, and keeps quotes, which a shell reads later."""
    with on_os_error(UsageError, f"{what} {path}"):
        text = read_given(path).decode("utf-8", "surrogateescape")
    values = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.lstrip().removeprefix("export ").partition("=")
        if strip:
            name, value = name.strip(), value.strip()
        elif len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and value.count(value[0]) == 2:
            value = value[1:-1]
        where = f"{path}:{number}"
        if not equals:
            raise UsageError("no '=' in this line", where=where, hint="lines read KEY=VALUE")
        check_variable(what, name, value, where)
        values[name] = value
    return values


def env_file(values: Mapping[str, str]) -> str:
    """Returns the text that read_env_file() reads as these values. Raises UsageError if a line cannot hold one."""
    lines = []
    for name, value in values.items():
        mark = next((mark for mark in "\"'" if mark not in value), "")
        if "\n" in value or (not mark and value[0] == value[-1] and value[0] in "'\""):
            raise UsageError(f"variable {name}: no line can hold its value", hint="put it into a file, and name that")
        lines.append(f"{name}={mark}{value}{mark}\n")
    return "".join(lines)
