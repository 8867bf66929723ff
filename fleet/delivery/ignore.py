"""What .gitignore and .fleetignore leave out, by Git's rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from fleet.errors import UsageError
from fleet.protocol.state import OF_THE_HEAD

IGNORE_FILES = (".gitignore", ".fleetignore")


class Ignore:
    """The deepest ignore file that has a say decides, its last matching line; .git itself is never taken."""

    def __init__(self, levels: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._levels = levels

    def enter(self, folder: str, prefix: str) -> Ignore:
        """The rules inside `folder`, whose paths start with `prefix` ("" or "a/b/")."""
        patterns = [pattern for name in IGNORE_FILES for pattern in _patterns(Path(folder, name))]
        if not patterns:
            return self
        return Ignore(((prefix, GitIgnoreSpec(patterns)), *self._levels))

    def is_fleets(self, folder: str) -> bool:
        """Whether it holds what fleet itself keeps on this machine."""
        try:
            return Path(folder, IGNORE_FILES[0]).read_text("utf-8", "replace") == OF_THE_HEAD
        except OSError:
            return False

    def drops(self, path: str, folder: bool) -> bool:
        if path.rpartition("/")[2] == ".git":
            return True
        for prefix, spec in self._levels:
            verdict = spec.check_file(path[len(prefix) :] + ("/" if folder else "")).include
            if verdict is not None:
                return verdict
        return False


def outer_rules(root: Path) -> tuple[Ignore, str]:
    """Rules of the enclosing git checkout's folders above root, and root's path inside the checkout."""
    chain = [root, *root.parents]
    top = next((p for p in chain if (p / ".git").exists()), None)
    if top is None or top == root:
        return Ignore(), ""
    ignore = Ignore()
    for folder in reversed(chain[1 : chain.index(top) + 1]):
        ignore = ignore.enter(str(folder), "" if folder == top else f"{folder.relative_to(top)}/")
    return ignore, f"{root.relative_to(top)}/"


def _patterns(path: Path) -> list[Any]:
    """Those of one ignore file, in its order; none where there is no such file."""
    try:
        lines = path.read_text("utf-8", "surrogateescape").split("\n")
    except (FileNotFoundError, IsADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    found: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            found += GitIgnoreSpec.from_lines([line]).patterns
        except (ValueError, re.error) as error:
            raise UsageError(
                f"not a pattern: {line!r}",
                where=f"{path}:{number}",
                hint="correct it; a literal ! or \\ at its beginning needs a \\ before it",
            ) from error
    return found
