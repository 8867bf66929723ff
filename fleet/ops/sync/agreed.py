"""What a `sync:` section may send without a question: an inventory is often a colleague's, and names files of this
machine. Answers are kept in ~/.fleet/agreed, a line each: sha256 of the inventory's path and the paths it may send."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path


def outside(inventory: str, sources: Sequence[Path]) -> list[Path]:
    """Those of the sources that lie neither in the inventory's folder nor are the current one."""
    home, here = Path(inventory).resolve().parent, Path.cwd()
    real = [path.expanduser().resolve() for path in sources]
    return [path for path in dict.fromkeys(real) if path != here and not path.is_relative_to(home)]


def _line(inventory: str, paths: Sequence[Path]) -> str:
    said = [str(Path(inventory).resolve()), *sorted(map(str, paths))]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def agreed(home: Path, inventory: str, paths: Sequence[Path]) -> bool:
    """Whether the user said yes to just this before."""
    try:
        return _line(inventory, paths) in (home / ".fleet/agreed").read_text("ascii", "replace").splitlines()
    except OSError:
        return False


def remember(home: Path, inventory: str, paths: Sequence[Path]) -> None:
    """Keep a yes."""
    (home / ".fleet").mkdir(mode=0o700, exist_ok=True)
    fd = os.open(home / ".fleet/agreed", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "a") as f:
        f.write(_line(inventory, paths) + "\n")
