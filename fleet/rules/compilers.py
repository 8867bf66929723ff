"""Judges which compilers build ops for which GPUs: bounds of gcc by CUDA and by torch, each with its remedy; and the
compute capability of NVIDIA's GPUs, for drivers too old to report it themselves.

Sources of the upper bounds: CUDA's own crt/host_config.h ("unsupported GNU version!"); NVIDIA's CUDA Installation Guide
for Linux, "Host Compiler Support Policy"; torch/utils/cpp_extension.py (CUDA_GCC_VERSIONS). Sources of the lower
bounds: the C++ standard that torch's headers need (C++14 since 1.5, C++17 since 2.1), and the gcc that PyTorch's README
names for it.
Source of the capabilities: NVIDIA, "CUDA GPU Compute Capability", https://developer.nvidia.com/cuda-gpus (and its page
of legacy GPUs). Source of the first toolkit for a capability: that toolkit's release notes. If the driver reports the
capability itself (510 or newer: `nvidia-smi --query-gpu=compute_cap`), this table is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Facts = Mapping[str, Any]
Wrong = Iterator[tuple[str, str]]  # (what is wrong, the remedy)

# (first CUDA of this bound, newest gcc major that its nvcc accepts). A toolkit has the bound of the last line
# whose CUDA is not newer.
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
# (first torch of this bound, oldest gcc major that its headers accept)
OLDEST_GCC: tuple[tuple[tuple[int, int], int], ...] = (((1, 5), 5), ((2, 0), 7), ((2, 1), 9))


def numbers(version: str | None) -> tuple[int, int] | None:
    """Returns (major, minor) of "12.2.0", "2.13.0+cpu" or "12"; None for no version."""
    parts = [part for part in (version or "").split("+")[0].split(".") if part.isdigit()]
    return (int(parts[0]), int(parts[1]) if len(parts) > 1 else 0) if parts else None


def _bound(table: tuple[tuple[tuple[int, int], int], ...], version: str | None) -> int | None:
    at = numbers(version)
    fitting = [gcc for first, gcc in table if at is not None and first <= at]
    return fitting[-1] if fitting else None


def gcc_bounds(torch: str | None, cuda: str | None) -> tuple[int | None, int | None]:
    """Returns the (oldest, newest) gcc major that this torch and this CUDA toolkit accept; None if no bound is
    known."""
    return _bound(OLDEST_GCC, torch), _bound(NEWEST_GCC, cuda)


def another_gcc(major: int) -> str:
    """Returns how to install that gcc next to the system's, and how fleet then uses it."""
    return (
        f"Debian, Ubuntu: apt-get install g++-{major}, then env: {{CC: gcc-{major}, CXX: g++-{major}}} in the "
        f"inventory; CentOS 7: devtoolset-{major}, RHEL 8 and later: gcc-toolset-{major}, then activate: "
        f"'source /opt/rh/{'devtoolset' if major <= 11 else 'gcc-toolset'}-{major}/enable'"
    )


# -- compute capabilities
# The first pattern that matches a whole token of the name decides. "A100X" is one token.
CAPABILITIES: tuple[tuple[str, str], ...] = (
    # Blackwell
    (r"G?B300", "10.3"),
    (r"G?B[12]00", "10.0"),
    (r"GB10", "12.1"),
    (r"RTX PRO \d{4}( \w+)* Blackwell", "12.0"),
    (r"RTX PRO \d{4}", "12.0"),
    (r"RTX 50[5-9]0\w*", "12.0"),
    # Hopper
    (r"GH200|H[128]00|H20|H800", "9.0"),
    # Ada Lovelace
    (r"L40[SG]?|L4|L20|L2", "8.9"),
    (r"RTX \d{4}( SFF)? Ada", "8.9"),
    (r"RTX 40[5-9]0\w*", "8.9"),
    # Ampere
    (r"A100X?|A800|A30X?", "8.0"),
    (r"A10[GM]?|A16|A2|A40", "8.6"),
    (r"RTX A\d{4}", "8.6"),
    (r"RTX 30[5-9]0\w*", "8.6"),
    (r"Orin", "8.7"),
    # Turing
    (r"T4G?|T10|T40", "7.5"),
    (r"RTX 20[6-8]0\w*|TITAN RTX|GTX 16[5-6]0\w*|(Quadro )?RTX [3-8]000|T\d{3,4}", "7.5"),
    # Volta, Pascal, Maxwell, Kepler
    (r"V100S?|TITAN V|GV100", "7.0"),
    (r"Xavier", "7.2"),
    (r"P100|GP100", "6.0"),
    (r"P40|P4|P6|TITAN Xp?|GTX 10[5-8]0\w*|P[1-6]000|P\d{3}", "6.1"),
    (r"M60|M40|M10|M4|GTX 9[5-8]0\w*", "5.2"),
    (r"K80", "3.7"),
    (r"K40\w?|K20\w?", "3.5"),
)

# capability -> the first CUDA toolkit whose nvcc knows it
FIRST_CUDA = {
    "7.0": (9, 0),
    "7.2": (9, 0),
    "7.5": (10, 0),
    "8.0": (11, 0),
    "8.6": (11, 1),
    "8.7": (11, 4),
    "8.9": (11, 8),
    "9.0": (11, 8),
    "10.0": (12, 8),
    "10.3": (12, 9),
    "12.0": (12, 8),
    "12.1": (12, 9),
}
# capability -> the last CUDA toolkit that still compiles for it
LAST_CUDA = {
    "3.5": (11, 8),
    "3.7": (11, 8),
    "5.2": (12, 9),
    "6.0": (12, 9),
    "6.1": (12, 9),
    "7.0": (12, 9),
    "7.2": (12, 9),
}

ARCH = re.compile(r"\d{1,2}\.\d[af]?(\+PTX)?")


def capability(name: str) -> str | None:
    """Returns the compute capability of a GPU by its name: "8.0" of "NVIDIA A100-SXM4-80GB". None for an unknown
    name."""
    for pattern, value in CAPABILITIES:
        if re.search(rf"(?<![A-Za-z0-9])({pattern})(?![A-Za-z0-9])", name):
            return value
    return None


# -- whether a node's compilers can build for its torch and its GPUs: facts as node/python/toolchain.py has them
def wrong_toolkit(arch: tuple[str, ...], torch: Facts, nvcc: Facts | None) -> Wrong:
    built = numbers(torch.get("cuda"))
    if torch and built is None and not torch.get("hip"):
        yield (
            f"torch {torch['version']} there is built without CUDA, which GPUs ({';'.join(arch)}) need",
            "install a CUDA build of torch there; --cpu builds only for the CPU",
        )
        return
    if nvcc is None:
        wanted = f" {torch['cuda']}" if torch.get("cuda") else ""
        yield (
            "no nvcc there",
            f"install the CUDA toolkit{wanted}, set CUDA_HOME in 'env', choose another host with "
            "--on, or build only for the CPU with --cpu",
        )
        return
    version = numbers(nvcc["version"])
    if version is None:
        return
    if built and built[0] != version[0]:
        yield (
            f"nvcc is {nvcc['version']}, torch is built with CUDA {torch['cuda']}",
            f"point CUDA_HOME in 'env' at a toolkit {built[0]}.x: ops and torch must share the major version",
        )
    for one in arch:
        plain = one.split("+")[0].rstrip("af")
        if version < FIRST_CUDA.get(plain, (0, 0)):
            first = ".".join(map(str, FIRST_CUDA[plain]))
            yield (
                f"nvcc {nvcc['version']} does not know compute capability {one}",
                f"CUDA {first} is the first that does: point CUDA_HOME at one, or narrow --arch or -w",
            )
        if version > (last := LAST_CUDA.get(plain, version)):
            yield (
                f"nvcc {nvcc['version']} no longer compiles for compute capability {one}",
                f"CUDA {'.'.join(map(str, last))} is the last that does: point CUDA_HOME at one, or narrow --arch "
                "or -w",
            )


def wrong_compilers(facts: Facts, torch: Facts, cuda: str | None) -> Wrong:
    for key, name in (("cc", "gcc"), ("cxx", "g++")):
        found = facts.get(key)
        version = numbers(found["version"]) if found is not None else None
        oldest, newest = gcc_bounds(torch.get("version"), cuda)
        if found is None:
            yield (
                f"no {name} there",
                f"apt-get install {name}, yum install {name.replace('g++', 'gcc-c++')}; "
                "or name one in 'activate' or in CC and CXX",
            )
        elif version is not None and newest is not None and version[0] > newest:
            yield (
                f"{name} {found['version']} is too new for nvcc {cuda}, which takes up to {newest}",
                another_gcc(newest),
            )
        elif version is not None and oldest is not None and version[0] < oldest:
            yield (
                f"{name} {found['version']} is too old for torch {torch['version']}, which wants {oldest} or newer",
                another_gcc(min(oldest + 2, newest or oldest + 2)),
            )
