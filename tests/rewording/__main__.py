"""python -m tests.rewording [PYTEST ARGUMENTS]: the behaviour tests on a copy of fleet whose messages are replaced."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.rewording.reword import copy

# what starts fleet as its users do, and looks at exit codes, states, files and processes
ALL = [
    *(f"tests/lab/test_{name}.py" for name in ("runs", "two_heads", "attempts", "elastic", "grace", "launch")),
    *(
        f"tests/lab/test_{name}.py"
        for name in ("launch_causes", "kill_port", "get", "sync", "exec", "leader", "stacks")
    ),
    *(f"tests/lab/test_{name}.py" for name in ("setup_ssh", "setup_ssh_trouble", "setup_ssh_home", "broadcast")),
]


def run(folder: Path, arguments: Sequence[str]) -> int:
    """pytest's exit status."""
    print(f"{copy(folder)} messages replaced in {folder}", flush=True)
    argv = [str(folder / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *(arguments or ALL)]
    return subprocess.run(argv, cwd=folder).returncode


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="fleet-reworded-"))
    try:
        sys.exit(run(place, sys.argv[1:]))
    finally:
        shutil.rmtree(place)
