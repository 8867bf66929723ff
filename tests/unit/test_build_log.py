"""What the log of a build means."""

from __future__ import annotations

import pytest

from fleet.rules.build_log import first_error, remedy


@pytest.mark.parametrize(
    ("log", "line", "help_"),
    [
        (
            "  gcc -c x.c\n  x.c:1:10: fatal error: Python.h: No such file or directory\n  compilation terminated.\n"
            "  error: command '/usr/bin/gcc' failed with exit code 1\n  error: subprocess-exited-with-error\n",
            "x.c:1:10: fatal error: Python.h: No such file or directory",
            "python3-dev",
        ),
        (
            "g++ -Werror=format -c a.cpp\na.cpp:3:5: error: 'f' was not declared\n1 error generated.\n",
            "a.cpp:3:5: error: 'f' was not declared",
            None,
        ),
        (
            "error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
            "error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
            "older one",
        ),
        (
            "Traceback (most recent call last):\n"
            "  File \"setup.py\", line 2\nModuleNotFoundError: No module named 'Cython'\n",
            "ModuleNotFoundError: No module named 'Cython'",
            "fleet sync --wheels",
        ),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_100'\n",
            "nvcc fatal   : Unsupported gpu architecture 'compute_100'",
            "--arch",
        ),
        (
            "/usr/bin/ld: cannot find -laio: No such file or directory\ncollect2: error: ld returned 1 exit status\n",
            "collect2: error: ld returned 1 exit status",
            "-dev package",
        ),
        (
            "LookupError: setuptools-scm was unable to detect version for /x\n",
            "LookupError: setuptools-scm was unable to detect version for /x",
            "PRETEND_VERSION",
        ),
        ("x.h:5: warning: error in comment\ncopying error.py -> build\nall fine\n", None, None),
    ],
)
def test_what_a_log_means(log: str, line: str | None, help_: str | None) -> None:
    assert first_error(log) == line
    found = remedy(log)
    assert found is None if help_ is None else help_ in (found or "")
