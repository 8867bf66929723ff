"""Keeps the findings of `fleet check` about GPUs and hosts, in ~/.fleet/health on the head. The next check and
`-x @unfit` read them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fleet import own
from fleet.codec import decode, plain
from fleet.node.base.files import replace_file
from fleet.node.base.locks import exclusive_lock
from fleet.protocol.state import HEALTH, HOME
from fleet.rules.history import Kept, errors_of
from fleet.sources import SOURCES

MOST_KEPT, MOST_BYTES = 10_000, 16 << 20  # entries, bytes; entries with an open error are kept first, then the newest
FILE = "kept.json"


def scope_of(source: str) -> str:
    """Returns the scope in which names of hosts are unique: an inventory's path, or the scope of a source of hosts."""
    name = source.partition(":")[0]
    return SOURCES.get(name).scope(os.environ) if name in SOURCES.own else os.path.abspath(source)


def load() -> tuple[list[Kept], str | None]:
    """Returns the kept entries, and the fault of the file as text, or None if it has no fault."""
    path, kept = f"~/{HOME}/{HEALTH}/{FILE}", list[Kept]()
    try:
        found = own.read_json(Path(path).expanduser(), MOST_BYTES)
        if not isinstance(found, list):
            return [], f"{path} holds no list"
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError, RuntimeError) as error:  # no home
        return [], f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    for each in found:
        with suppress(ValueError):
            kept.append(decode(Kept, each))
    wrong = len(found) - len(kept)
    return kept, f"{path}: {wrong} of {len(found)} entries cannot be read" if wrong else None


def keep(change: Callable[[list[Kept]], list[Kept]]) -> None:
    """Replaces the kept entries by the result of `change`. Writes nothing if the result is empty and the file has no
    fault. Raises OSError if the file cannot be written, and UsageError if its folder is another user's."""
    kept, wrong = load()
    if not change(kept) and not wrong:
        return
    folder = own.home(Path.home(), HEALTH)
    with open(folder / ".lock", "ab", opener=own.private) as lock, exclusive_lock(lock.fileno()):
        kept = sorted(change(load()[0]), key=lambda each: (bool(errors_of(each)), each.at))[-MOST_KEPT:]
        replace_file(os.fsencode(folder / FILE), json.dumps(plain(kept)).encode(), 0o600)
