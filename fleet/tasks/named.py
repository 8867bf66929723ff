"""Decides if an argument of the command line names Python tasks. Needs neither fabric nor the file's own code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_TASKS = re.compile(rb"^\s*(from|import)\b.*(fabric|invoke|task|\*)", re.MULTILINE)


@dataclass(frozen=True)
class NamedTasks:
    """Describes an argument that names tasks: tasks.py:NAME, tasks.py, or the folder of a package of tasks."""

    path: Path
    task: str | None = None

    @classmethod
    def of(cls, token: str) -> NamedTasks | None:
        """Returns the tasks that an argument names, or None if it names no Python file or package, but a YAML
        playbook."""
        path, colon, task = token.rpartition(":")
        if not (colon and _is_python(Path(path))):
            path, task = token, ""
        return cls(Path(path), task or None) if _is_python(Path(path)) else None

    def imports_tasks(self) -> bool:
        """Returns whether the file can have tasks: it has such a name, or it imports fabric, invoke or a `task`.
        Returns True for a folder and for a missing file, because the reader of the tasks reports errors."""
        named = self.task or self.path.name in ("tasks.py", "fabfile.py") or not self.path.is_file()
        return bool(named or _TASKS.search(self.path.read_bytes()))


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").is_file()
