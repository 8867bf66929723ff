"""Programs of others come from the package registry, at pinned versions, into a cache that no checkout holds."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


class NoPackage(Exception):
    """A package is not to be had; says which, and the installer's last words."""


# set -> what pip is given. "NAME==VERSION/sdist" is unpacked as it lies in the registry, never installed
SETS = {
    "accelerate": ("accelerate==1.15.0/sdist", "parameterized==0.9.0"),
    "colossalai": ("colossalai==0.5.0/sdist",),
    "hydra": ("hydra-core==1.3.8", "omegaconf==2.4.0", "antlr4-python3-runtime==4.9.3/sdist"),
    "ignite": ("pytorch-ignite==0.5.5",),
    "lightning": (
        "lightning==2.6.6",
        "pytorch-lightning==2.6.6",
        "lightning-utilities==0.15.3",
        "torchmetrics==1.9.0",
    ),
    "torchft": (
        "torchft==0.2.0",
        "opentelemetry-api==1.39.1",
        "opentelemetry-sdk==1.39.1",
        "opentelemetry-semantic-conventions==0.60b1",
        "opentelemetry-proto==1.39.1",
        "opentelemetry-exporter-otlp-proto-common==1.39.1",
        "opentelemetry-exporter-otlp-proto-http==1.39.1",
        "googleapis-common-protos==1.72.0",
        "protobuf==6.33.2",
        "requests==2.32.5",
        "urllib3==2.6.2",
        "idna==3.11",
        "certifi==2025.11.12",
        "charset-normalizer==3.4.4",
        "importlib-metadata==8.7.0",
        "zipp==3.23.0",
    ),
    "torchtitan": (
        "torchtitan==0.3.0",
        "torchdata==0.11.0",
        "spmd_types==0.2.3",
        "tyro==1.0.17",
        "typeguard==4.6.1",
        "shtab==1.13.0",
        "docstring_parser==0.18.0",
        "einops==0.8.2",
    ),
    "torchx": (
        "torchx==0.7.0",
        "pyre-extensions==0.0.32",
        "typing-inspect==0.9.0",
        "docstring-parser==0.17.0",
        "importlib-metadata==6.11.0",
        "zipp==3.23.0",
    ),
}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleet-foreign"


def fetched(name: str) -> Path:
    """The folder of a set, for PYTHONPATH: its packages, and each sdist as NAME-VERSION/ in it.

    Raises NoPackage."""
    key = hashlib.sha256(repr((SETS[name], sys.version_info[:2])).encode()).hexdigest()[:12]
    place = cache() / f"{name}-{key}"
    if place.is_dir():
        return place
    cache().mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache()))
    try:
        wheels = [pin for pin in SETS[name] if not pin.endswith("/sdist")]
        if wheels:
            pip("install", "--no-deps", "--only-binary", ":all:", "--target", str(part), *wheels)
        for pin in SETS[name]:
            if pin.endswith("/sdist"):
                unpack(pin.removesuffix("/sdist"), part)
        if not place.exists():
            part.chmod(0o755)
            part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


def unpack(pin: str, folder: Path) -> None:
    """What the registry has as NAME-VERSION.tar.gz, in `folder`. (pip runs its setup for the version's sake.)"""
    with tempfile.TemporaryDirectory() as where:
        pip("download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", where, pin)
        (archive,) = Path(where).iterdir()
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
            else:
                tar.extractall(folder)


def pip(*words: str) -> None:
    line = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and "is ignored" not in line]
        raise NoPackage(f"pip {' '.join(words)}: exit {done.returncode}\n" + "\n".join(said[-8:]))
