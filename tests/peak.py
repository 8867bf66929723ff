"""How much memory something takes: run in a process of its own, whose peak the kernel tells."""

from __future__ import annotations

import json
import subprocess
import sys

LIMIT_MIB = 200
_TAIL = """
import resource as _r, sys as _s
_s.stderr.write("peak %d" % (_r.getrusage(_r.RUSAGE_SELF).ru_maxrss // 1024))
"""


def peak_of(code: str, *args: object) -> int:
    """MiB at the peak of a Python program; its sys.argv[1] is JSON of args. It must end well."""
    done = subprocess.run([sys.executable, "-c", code + _TAIL, json.dumps(args)], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stderr.rpartition("peak ")[2])
