"""Why a file that is missed on a node is not sent."""

from __future__ import annotations

import os
from pathlib import Path

from fleet.delivery.ignore import Sieve, Why


def why_not_sent(root: Path, path: str) -> Why | None:
    """Why a file below the folder `root` is not sent with it; None where it is, or is not there."""
    return Sieve(os.path.realpath(root)).why(path) if os.path.isfile(root / path) else None


def missed(root: Path, path: str) -> str | None:
    """Returns what to do about a path that is missed on a node, where it lies here and is left out; None where not."""
    name = os.path.normpath(path)
    if name.startswith(("/", "../")) or not os.path.lexists(root / name):
        return None
    why = Sieve(os.path.realpath(root)).why(name, os.path.isdir(root / name))
    return why and f"{name} is here and not sent, by {why}; a line '!{name}' in .fleetignore brings it back"
