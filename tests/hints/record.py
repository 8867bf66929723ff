"""Records what the programs of programs.txt write as they fail. python -m tests.hints.record [NAME ...]"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from fleet.rules.hints import TAIL_BYTES
from tests.free_port import free_port
from tests.hints.programs import PROGRAMS, RECORDED, WAYS, Program

LIBRARY = re.compile(r"/\S*?/lib/python3")


def end_of(program: Program) -> tuple[int, str]:
    """(its exit code, 128 + n of a signal; the end of what it wrote to stderr, with paths as on a node)."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(program.code if "SyntaxError" in program.cause else WAYS + program.code)
        argv = shlex.split(program.how.format(python=sys.executable, py=script))
        base = {"PATH": os.environ["PATH"], "HOME": folder, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
        started = []
        for rank in range(program.ranks):
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": program.ranks, "MASTER_PORT": port}
            env = {**base, **{name: str(value) for name, value in world.items()}}
            started.append(
                subprocess.Popen(argv, cwd=folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
            )
        wrote = [process.communicate(timeout=120)[1] for process in started]
        status = started[-1].returncode
    text = wrote[-1][-TAIL_BYTES:].decode("utf-8", "replace")
    text = text.replace(sys.executable, "/opt/train/bin/python").replace(folder, "/root/work")
    return (128 - status if status < 0 else status), LIBRARY.sub("/opt/train/lib/python3", text)


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    for program in PROGRAMS:
        if program.name in sys.argv[1:] or not sys.argv[1:]:
            status, text = end_of(program)
            (RECORDED / f"{program.name}.txt").write_text(f"{status}\n{text}")
            print(program.name, status, text.strip().rpartition("\n")[2][:100])
