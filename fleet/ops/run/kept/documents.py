"""JSON documents in a run's folder on the head, which others may have damaged, or put there."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet import own

MISSING = "is not there"
SEAL = "seal"
RUN = "run.json"


def read_told(path: Path) -> tuple[dict[str, Any], str | None]:
    """(a JSON object, {} where the file has none; what is wrong with the file, as text)."""
    try:
        found = own.read_json(path)
    except FileNotFoundError:
        return {}, MISSING
    except (OSError, ValueError) as error:
        why = os.strerror(errno.EISDIR) if path.is_dir() else str(getattr(error, "strerror", None) or error)
        return {}, f"cannot be read: {why}"
    return (found, None) if isinstance(found, dict) else ({}, "cannot be read: it holds no JSON object")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, {} for a file that is missing, unreadable or holds something else."""
    return read_told(path)[0]


def restarts_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what a run.json has of the run's restarts."""
    restarts = document.get("restarts")
    return [each for each in restarts if isinstance(each, dict)] if isinstance(restarts, list) else []


def sealed(document: Mapping[str, Any], run: str) -> dict[str, Any]:
    """Returns a document of a run with the seal by which this user's fleet knows that it wrote it."""
    plain = {name: value for name, value in document.items() if name != SEAL}
    return {**plain, SEAL: own.seal(run, plain)}


def is_sealed(document: Mapping[str, Any], run: str) -> bool:
    """Returns whether this user's fleet wrote a document, of that run, as it is."""
    plain = {name: value for name, value in document.items() if name != SEAL}
    return own.is_seal(document.get(SEAL), run, plain)
