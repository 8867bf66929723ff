"""fleet as a stranger has it: built, installed outside the clone, without any way back into it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        argv,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def sources() -> list[str]:
    """The files of the clone that git tracks, or would; of an unpacked sdist those that it came with."""
    if not (ROOT / ".git").exists():
        listed = (ROOT / "fleet_launch.egg-info/SOURCES.txt").read_text("utf-8")
        return [name for name in listed.splitlines() if os.path.lexists(ROOT / name)]
    listed = run("git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", cwd=ROOT)
    return [name for name in listed.splitlines() if os.path.lexists(ROOT / name)]


@dataclass(frozen=True)
class Installed:
    """sdist, and the wheel built from it; bin: of the environment that it was installed in."""

    sdist: Path
    wheel: Path
    bin: Path


def install(base: Path) -> Installed:
    """sdist -> wheel -> a new environment, without a network: other packages are the test environment's."""
    (base / "clone").mkdir()
    run("cp", "-a", "--parents", *sources(), base / "clone", cwd=ROOT)
    run(
        sys.executable,
        "-c",
        f"from setuptools import build_meta; build_meta.build_sdist({str(base)!r})",
        cwd=base / "clone",
    )
    (sdist,) = base.glob("*.tar.gz")
    pip = ["-m", "pip", "--disable-pip-version-check"]
    run(sys.executable, *pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", base, sdist, cwd=base)
    (wheel,) = base.glob("*.whl")
    run("rm", "-r", base / "clone", cwd=base)
    run(sys.executable, "-m", "venv", "--without-pip", base / "env", cwd=base)
    (site,) = base.glob("env/lib/python3*/site-packages")
    for number, path in enumerate(path for path in sys.path if path.endswith("site-packages")):
        (base / f"borrowed{number}").mkdir()
        (base / f"borrowed{number}/site-packages").symlink_to(path)
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in sorted(base.glob("borrowed*/site-packages"))))
    run(base / "env/bin/python", *pip, "install", "--no-index", "--no-deps", "--ignore-installed", wheel, cwd=base)
    return Installed(sdist, wheel, base / "env/bin")
