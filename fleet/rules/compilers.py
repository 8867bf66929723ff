"""Which gcc takes part in compiling ops: bounds by CUDA and by torch, each with its remedy.

Sources: the upper bounds are those of CUDA's own crt/host_config.h ("unsupported GNU version!"), listed in NVIDIA's
CUDA Installation Guide for Linux, "Host Compiler Support Policy", and repeated by torch in
torch/utils/cpp_extension.py (CUDA_GCC_VERSIONS); the lower ones are the C++ standard that torch's headers ask for
(C++14 since 1.5, C++17 since 2.1) and the gcc that PyTorch's README names for it.
"""

from __future__ import annotations

# (first CUDA of this bound, newest gcc major that its nvcc accepts); the last line at or below a toolkit counts
NEWEST_GCC: tuple[tuple[tuple[int, int], int], ...] = (
    ((9, 0), 6),
    ((9, 2), 7),
    ((10, 1), 8),
    ((11, 0), 9),
    ((11, 1), 10),
    ((11, 5), 11),
    ((12, 0), 12),
    ((12, 4), 13),
    ((12, 8), 14),
    ((13, 0), 15),
)
# (first torch, oldest gcc major)
OLDEST_GCC: tuple[tuple[tuple[int, int], int], ...] = (((1, 5), 5), ((2, 0), 7), ((2, 1), 9))


def numbers(version: str | None) -> tuple[int, int] | None:
    """(major, minor) of "12.2.0", "2.13.0+cpu" or "12"; None for no version."""
    parts = [part for part in (version or "").split("+")[0].split(".") if part.isdigit()]
    return (int(parts[0]), int(parts[1]) if len(parts) > 1 else 0) if parts else None


def _bound(table: tuple[tuple[tuple[int, int], int], ...], version: str | None) -> int | None:
    at = numbers(version)
    fitting = [gcc for first, gcc in table if at is not None and first <= at]
    return fitting[-1] if fitting else None


def gcc_bounds(torch: str | None, cuda: str | None) -> tuple[int | None, int | None]:
    """(oldest, newest) gcc major that this torch and this CUDA toolkit accept; None: no bound known."""
    return _bound(OLDEST_GCC, torch), _bound(NEWEST_GCC, cuda)


def another_gcc(major: int) -> str:
    """How to get that gcc beside the system's, and have fleet use it."""
    return (
        f"Debian, Ubuntu: apt-get install g++-{major}, then env: {{CC: gcc-{major}, CXX: g++-{major}}} in the "
        f"inventory; CentOS 7: devtoolset-{major}, RHEL 8 and later: gcc-toolset-{major}, then activate: "
        f"'source /opt/rh/{'devtoolset' if major <= 11 else 'gcc-toolset'}-{major}/enable'"
    )
