"""Finds what went wrong in a build's log: the first line that is an error, and what helps."""

from __future__ import annotations

import re

from fleet.rules.hint import Hint, first_match

# The patterns are tried in this order. The error is the first line that matches. The patterns of compilers come before
# those of tools that only report a compiler's failure.
ERRORS = (
    r"(?:^|\s)(?:fatal )?error\b(?:[: ]| #)(?!.*subprocess-exited)",
    r"undefined reference|cannot find -l",
    r"^(?:nvcc fatal|c(?:c1plus|ollect2)|g\+\+|gcc|ld)\s*:",
    r"^\s*(?:\w+\.)*\w*(?:Error|Exception)\b.*:",
    r"^ERROR: ",
)
NOT_ERRORS = re.compile(
    r"subprocess-exited|-Werror|error_code|errors? generated|\.(?:py|cpp|c|cu|h)\s*->|"
    r"^\s*(?:creating|copying|adding) |^\s*(?:g\+\+|gcc|cc|c\+\+|nvcc|x86_64[-\w]*) -|warning:"
)

REMEDIES = (
    Hint(
        r"Python\.h: No such file",
        "install the headers of that Python (apt-get install python3-dev), or use a conda environment, which has them",
    ),
    Hint(
        r"unsupported GNU version", "nvcc refuses this gcc: name an older one in 'activate' (devtoolset) or CC and CXX"
    ),
    Hint(
        r"CUDA_HOME|nvcc: (?:command )?not found|No such file.*nvcc",
        "install the CUDA toolkit there, set CUDA_HOME in 'env', or build on another host with --on",
    ),
    Hint(
        r"cuda_runtime\w*\.h: No such file|cublas\w*\.h: No such file|cusparse\.h: No such file",
        "the CUDA toolkit there lacks its headers: install it whole, not only nvcc",
    ),
    Hint(
        r"Unsupported gpu architecture|nvcc fatal", "this nvcc does not know the GPU: a newer CUDA toolkit, or --arch"
    ),
    Hint(r"setuptools.scm was unable", "the tree comes without its .git: --env SETUPTOOLS_SCM_PRETEND_VERSION=1.2.3"),
    Hint(
        r"No module named '(\w+)'",
        "the build needs it in the host's Python: 'fleet sync --wheels FOLDER', with it in there",
    ),
    Hint(r"BackendUnavailable|Cannot import '", "the build backend must be in the host's Python: sync its wheel there"),
    Hint(r"No space left on device", "free some space there, in the home folder and in /tmp"),
    Hint(r"Killed signal|Killed$|cc1plus.*terminated", "the compiler ran out of memory: --env MAX_JOBS=1"),
    Hint(r"libaio\.h", "apt-get install libaio-dev there, or leave async_io out of --ops"),
    Hint(r": No such file or directory", "a header or library is missing there: install its -dev package"),
    Hint(r"cannot find -l", "a library is missing there: install its -dev package"),
)


def first_error(log: str) -> str | None:
    """Returns the line that shows the error; None if no line looks like one."""
    lines = [line.strip() for line in log.splitlines()]
    for pattern in ERRORS:
        for line in lines:
            if re.search(pattern, line) and not NOT_ERRORS.search(line):
                return line[:300]
    return None


def remedy(log: str) -> str | None:
    """Returns the remedy for the first error; if it is unknown, for any known line at the end of the log; None without
    one."""
    found = first_match(REMEDIES, first_error(log) or "") or first_match(REMEDIES, log[-20000:])
    return found.remedy if found else None
