"""How much memory a command takes at its peak, as the kernel tells it."""

from __future__ import annotations

import subprocess
import sys

LIMIT_MIB = 200
# of its own, and small: a child's peak begins with what its parent had when it started it
_WATCH = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
sys.stderr.write("\\nended with %d, peak %d" % (code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024))
"""


def peak_of(*argv: str) -> int:
    """MiB at the peak of the largest process of a command, which must end well."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _WATCH, *argv], stderr=subprocess.PIPE, text=True, timeout=300
    )
    _, _, told = done.stderr.rpartition("\nended with ")
    assert told.startswith("0, peak "), done.stderr[-2000:]
    return int(told.rpartition(" ")[2])
