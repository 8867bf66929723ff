"""Recognises how other tools name hosts, and returns a line to copy. The line is only a hint, for a text that was not
understood or that has another meaning in fleet."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container

# [ssh://][user@]host[:port]
LOGIN = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^\s@:/]+)@)?(?:\[(?P<v6>[^\s@\[\]]*:[^\s@\[\]]*)\]|(?P<host>[^\s@:/]+))"
    r"(?::(?P<port>[0-9]+))?/?"
)


def is_like_a_port(number: int) -> bool:
    """Returns whether the number is 22, or too large for slots or devices."""
    return number == 22 or number >= 1024


def login(text: str) -> str | None:
    """Returns a hint that shows root@10.0.0.1:2222 as a host of an inventory. Returns None for another text."""
    match = LOGIN.fullmatch(text)
    if not match or not match["user"]:
        return None
    fields = {key: match[key] for key in ("user", "port") if match[key]}
    host = match["v6"] or match["host"]
    line = " ".join([host, *(f"{key}={value}" for key, value in fields.items())])
    pairs = ", ".join(f"{key}: {value}" for key, value in fields.items())
    key = f'"{host}"' if "[" in host else host
    return f"in a hostfile: {line}; in YAML: {{hosts: {{{key}: {{{pairs}}}}}}}"


def selection(option: str, text: str, known: Container[str]) -> str | None:
    """Returns a hint with the value that was probably meant for -w or -x, or None if that is not clear. known: names of
    hosts."""
    match = LOGIN.fullmatch(text)
    if match and match["user"] and match["user"] not in known:
        here = [name for name in (f"{match['host']}:{match['port']}", match["host"]) if name in known]
        if here:
            return f"{option} {here[0]}; its user is in the inventory, user={match['user']}"
        return f"{option} takes hosts of the inventory; {login(text)}"
    parts = text.split(",") if "[" not in text else re.split(r",(?![^\[]*\])", text)
    out = [part.strip()[1:] for part in parts if part.strip().startswith("-") and len(part.strip()) > 1]
    if out and option != "-x":
        rest = ",".join(part for part in parts if not part.strip().startswith("-"))
        return f"{f'{option} {shlex.quote(rest)} ' if rest else ''}-x {shlex.quote(','.join(out))} leaves hosts out"
    if out:
        return f"-x {shlex.quote(text.replace('-', '', 1))}"
    if re.fullmatch(r"\S+(\s+\S+)+", text.strip()) and not re.search(r"[,!&^@]", text):
        return f"{option} {shlex.quote(','.join(text.split()))}: hosts are joined by ','"
    return None
