"""Checks environment variables, of all options and files that set them."""

from __future__ import annotations

from fleet.errors import UsageError
from fleet.inventory.fields import ENV_NAME

MAX_VARIABLE = (128 << 10) - 1  # bytes of NAME=VALUE that Linux's exec takes


def check_variable(option: str, name: str, value: str, where: str | None = None) -> None:
    """Raises UsageError for a variable that no process can have. No message has a value, nor an invalid name, which may
    be part of a value."""
    if not ENV_NAME.fullmatch(name):
        raise UsageError(
            f"{option}: not a variable name in front of '='", where=where, hint="letters, digits and _, as in KEY=VALUE"
        )
    if name.startswith("FLEET_"):
        raise UsageError(f"{option} {name}: names that begin with FLEET_ are fleet's own", where=where)
    if "\0" in value:
        raise UsageError(f"{name}: a value cannot hold a NUL byte", where=where)
    size = len(f"{name}={value}".encode("utf-8", "surrogateescape"))
    if size > MAX_VARIABLE:
        text = f"variable {name}: {size} bytes are more than any program can be given, {MAX_VARIABLE}"
        raise UsageError(text, hint="put it into a file, 'fleet sync' brings it there; the variable names the file")
