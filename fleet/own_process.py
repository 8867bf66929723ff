"""Starts fleet's own Python programs. None of them imports anything from the current folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = str(Path(__file__).resolve().parents[1])
BOOT = (
    "import json, sys; begin = json.loads(sys.stdin.buffer.readline()); sys.path[:] = begin['path']; "
    "from importlib import import_module; module, name = begin['function'].split(':'); "
    "getattr(import_module(module), name)(begin['spec'])"
)


def own_process(
    function: str,
    spec: Any,
    *,
    env: Mapping[str, str] | None = None,
    path: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.STDOUT,
) -> subprocess.Popen[bytes]:
    """Returns a new process, in a session of its own, that calls `function` ("module:name") with `spec`.

    spec: JSON, which is passed through a pipe, so that no argv and no environment shows it. path: folders that the new
    process has in sys.path, after those of this process. The new process's current folder is /, which is not in its
    sys.path. Raises OSError if the process cannot be started.
    """
    here = os.getcwd()
    known = [entry for entry in sys.path if os.path.isabs(entry) and entry != here]
    begin = {"path": [*dict.fromkeys([*known, ROOT, *path])], "function": function, "spec": spec}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", BOOT],
        cwd="/",
        env=env,
        start_new_session=True,
        pass_fds=pass_fds,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
    )
    assert process.stdin
    try:
        process.stdin.write(json.dumps(begin).encode() + b"\n")
        process.stdin.close()
        process.stdin = None  # otherwise communicate() would write to it
    except OSError:
        with process:  # closes its pipes, waits
            process.kill()
        raise
    return process


def command_line() -> list[str]:
    """Returns the argv that starts fleet's command line, in any folder."""
    program = Path(sys.executable).with_name("fleet")
    start = f"import sys; sys.path[:] = [{ROOT!r}, *filter(None, sys.path)]; from fleet.__main__ import main; main()"
    return [str(program)] if program.exists() else [sys.executable, "-c", start]
