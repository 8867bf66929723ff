"""Wheels made on the spot: a zip, its metadata and a RECORD that tells the truth."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest


def make_env(folder: Path) -> Path:
    """A virtual environment made in an instant: it sees the running one's packages (pip among them) behind its own.
    Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    (site / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python3"


def make_wheel(
    folder: Path,
    name: str = "tinypkg",
    version: str = "1.0",
    *,
    tag: str = "py3-none-any",
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    headers: Sequence[str] = (),
) -> Path:
    """A wheel of a package that only knows its version, or of `files`."""
    files = dict(files if files is not None else {f"{name}/__init__.py": f"__version__ = {version!r}\n"})
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"{line}\n" for line in [*headers, *(f"Requires-Dist: {r}" for r in requires)])
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n"
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}\n")
    files[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return wheel


def python_facts(version: str = "3.11.7", glibc: int = 36, **changes: Any) -> dict[str, Any]:
    """An interpreter as node/python/interpreter.py describes it, CPython on x86_64."""
    cp = "cp" + "".join(version.split(".")[:2])
    platforms = [f"manylinux_2_{n}_x86_64" for n in range(glibc, 16, -1)] + ["linux_x86_64"]
    tags = [f"{cp}-{cp}-{p}" for p in platforms] + [f"{cp}-abi3-{p}" for p in platforms] + ["py3-none-any"]
    return {
        "version": version,
        "implementation": "cpython",
        "soabi": f"{cp}-x86_64",
        "platform": "linux-x86_64",
        "executable": "/opt/python",
        "prefix": "/opt",
        "pip": "23.2",
        "tags": tags,
        "managed": False,
        "dists": [],
        "markers": {
            "implementation_name": "cpython",
            "implementation_version": version,
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_release": "6.1.0",
            "platform_system": "Linux",
            "platform_version": "#1",
            "python_full_version": version,
            "python_version": ".".join(version.split(".")[:2]),
            "sys_platform": "linux",
        },
        "free": 1 << 40,
        "target": "/opt/site-packages",
        "states": [],
        **changes,
    }


def offline_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has pip know one index: a folder, of which nothing is there yet. Returns it."""
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder / "index"))
    return folder / "index"
