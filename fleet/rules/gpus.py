"""NVIDIA GPUs and their compute capability, for drivers too old to say it themselves.

Source: NVIDIA, "CUDA GPU Compute Capability", https://developer.nvidia.com/cuda-gpus (and its page of legacy GPUs);
the first CUDA toolkit that compiles for a capability: the release notes of that toolkit. A driver of 510 or newer
answers `nvidia-smi --query-gpu=compute_cap`, which is believed before this table.
"""

from __future__ import annotations

import re

# In order: the first pattern found in the name, as a word, decides. Letters behind a number are part of a word.
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
    """ "NVIDIA A100-SXM4-80GB" -> "8.0"; None for a name that is not known."""
    for pattern, value in CAPABILITIES:
        if re.search(rf"(?<![A-Za-z0-9])({pattern})(?![A-Za-z0-9])", name):
            return value
    return None
