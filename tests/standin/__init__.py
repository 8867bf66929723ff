"""An interpreter whose torch has a stand-in for torchrun, and nothing else: tests that are not about the launcher train
with it. What starts a real launcher, or imports torch, carries the marker `real`."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

TORCH = Path(__file__).with_name("torch")
# of the tests' own environment: what `fleet sync --wheels` and `fleet build` need
BORROWED = ("pip", "setuptools", "wheel", "_distutils_hack", "pkg_resources")
TORCHRUN = "#!{python}\nfrom torch.distributed.run import main\n\nmain()\n"


@functools.cache
def standin_python() -> str:
    """Returns the interpreter's path. It lies in the tests' own environment, which a lab's hosts have wherever that is;
    call it before the lab goes up."""
    files = [path.read_bytes() for path in (Path(__file__), *sorted(TORCH.rglob("*.py")))]
    folder = Path(sys.prefix, f"standin-{hashlib.sha256(b''.join(files)).hexdigest()[:12]}")
    python = folder / "bin/python"
    if not python.exists():
        made = Path(tempfile.mkdtemp(prefix="standin-", dir=sys.prefix))
        venv.create(made, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)}))
        shutil.copytree(TORCH, packages / "torch", ignore=shutil.ignore_patterns("__pycache__"))
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if path.name.partition("-")[0] in BORROWED:
                (packages / path.name).symlink_to(path)
        (made / "bin/torchrun").write_text(TORCHRUN.format(python=python))
        (made / "bin/torchrun").chmod(0o755)
        made.chmod(0o755)
        try:
            os.rename(made, folder)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return str(python)
