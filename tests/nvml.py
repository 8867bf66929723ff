"""A stand-in for NVIDIA's management library, which replays states of GPUs (tests/nvml.c): where a driver's would be
found, by LD_LIBRARY_PATH."""

from __future__ import annotations

import subprocess
from pathlib import Path

WELL = "690000 700000 70000000000 85000000000 61 1755"
IDLE = "GPU-idle 0 70000 700000 500000000 85000000000 31 345 0x1"
COLD = "GPU-cold 100 230000 700000 70000000000 85000000000 51 1980 0"


def nvml(folder: Path, *gpus: str) -> dict[str, str]:
    """Returns the variables by which a program finds it. gpus: the lines of tests/nvml.c."""
    source, library = Path(__file__).with_suffix(".c"), folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source)], check=True)
    (folder / "gpus").write_text("".join(f"{gpu}\n" for gpu in gpus))
    return {"LD_LIBRARY_PATH": str(folder)}
