"""Finds the hosts of -w and -x that stand elsewhere: on standard input, in a file, in the record of the last verb."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fleet.cli.screen import terminal
from fleet.errors import UsageError
from fleet.inventory.fields import FieldError
from fleet.node.base.files import replace_file
from fleet.own import bounded, home, read_json

STDIN, FILE, FAILED = "-", "^", "@failed"
read = set[str]()  # STDIN, once this process has taken names from there


@functools.cache  # a pipe gives its names once; a playbook's steps are for the hosts that it began with
def hosts_of(operand: str, source: str) -> Sequence[str] | None:
    """Returns the expressions that an operand stands for, with an inventory of that source; None where it is no such
    operand. FieldError; UsageError."""
    if operand == FAILED:
        return _failed(source)
    if operand == STDIN:
        if terminal.interactive(sys.stdin):
            raise UsageError("-w -: standard input is a terminal, which is not read", hint="give it names: < FILE")
        read.add(operand)
        return _words(0)
    return _words(os.path.expanduser(operand[1:])) if operand[:1] == FILE else None


def _words(file: str | int) -> Sequence[str]:
    try:
        with open(file, "rb", closefd=file != 0) as opened:
            text = bounded(opened).decode("utf-8", "replace")
    except (OSError, ValueError) as error:  # a NUL in it
        raise FieldError(f"it cannot be read: {getattr(error, 'strerror', error)}") from None
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    if not words:
        raise FieldError("no host stands there")
    return words


def keep_failed(source: str, names: Sequence[str]) -> None:
    """Keeps the hosts on which a verb has failed, until another verb is over with the inventory of that source."""
    place = _place(source)
    with suppress(OSError, UsageError, RuntimeError):  # no home that is ours: then nothing is on record
        if names:
            home(Path.home(), place.parent.name)
            replace_file(os.fsencode(place), json.dumps(names).encode(), 0o600, durable=False)
        else:
            place.unlink(missing_ok=True)


def _place(source: str) -> Path:
    return Path("~/.fleet/failed").expanduser() / hashlib.sha256(os.fsencode(os.path.abspath(source))).hexdigest()[:16]


def _failed(source: str) -> Sequence[str]:
    try:
        names = read_json(_place(source))
    except (OSError, ValueError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FieldError("no host is on record that failed in the last verb")
    return names
