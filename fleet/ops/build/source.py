"""Finds the source to build: a tree on the head, or an sdist (source archive) that pip downloads to the head."""

from __future__ import annotations

import re
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from fleet.errors import HostFailed, UsageError
from fleet.ops.cache import cache, fresh, turn
from fleet.ops.wheels.pip import run_pip
from fleet.runtime import Runtime

DEEPSPEED = "0.19.8"
GIVE_TREE = "give the tree with --source DIR"
VERSION = re.compile(r"[0-9][0-9A-Za-z.!+-]*")


def check_tree(folder: Path) -> Path:
    """Returns the folder if pip can make a wheel of it. Raises UsageError if pip cannot."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"the source {folder} {what}", hint="give the folder with its pyproject.toml or setup.py")
    if not (folder / "pyproject.toml").is_file() and not (folder / "setup.py").is_file():
        raise UsageError(
            f"{folder} has neither pyproject.toml nor setup.py",
            hint="give the folder that 'pip install FOLDER' would take",
        )
    return folder.resolve()


def fetch_deepspeed(version: str, runtime: Runtime) -> Path:
    """Returns the folder of the unpacked sdist of that version, from pip's index or from the cache."""
    if not VERSION.fullmatch(version):
        raise UsageError(f"--version: '{version}' is no version", hint=f"write {DEEPSPEED}, for instance")
    folder = cache() / "sources" / f"deepspeed-{version}"
    with turn(folder.name, "another download of this source", runtime):
        if not (folder / "setup.py").is_file():
            _download(version, folder, runtime)
    return folder


def _download(version: str, folder: Path, runtime: Runtime) -> None:
    with fresh(folder.with_name(f".{folder.name}.new")) as work:
        # pip would run the sdist's setup.py to get its metadata; only the node that builds may run setup.py
        only_source = ["--no-binary", "deepspeed", "--no-deps", "--progress-bar", "off"]
        printed = run_pip(["download", *only_source, f"deepspeed=={version}"], work, runtime, sources=work)
        if printed is not None:
            errors = [
                line for line in printed.splitlines() if line.startswith("ERROR: ")
            ] or printed.strip().splitlines()
            raise HostFailed(
                f"pip download: {errors[-1].removeprefix('ERROR: ') if errors else 'failed'}",
                kind="collect",
                hint="name a released --version, or give the tree with --source DIR",
            )
        sdist = next(work.glob("*.tar.gz"), None)
        if sdist is None:
            raise HostFailed(f"pip left no source of deepspeed {version}", kind="collect", hint=GIVE_TREE)
        inner = unpack(sdist, work / "tree")
        shutil.rmtree(folder, ignore_errors=True)
        inner.rename(folder)


def unpack(sdist: Path, to: Path) -> Path:
    """Unpacks an sdist below `to`. Returns its only folder. Raises HostFailed for links, devices and paths that lead
    outside. tarfile's own filter is not used: it exists only since Python 3.11.4, and differs between versions."""
    try:
        with tarfile.open(sdist) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
                    raise HostFailed(
                        f"{sdist.name} holds {member.name!r}, which no source has",
                        kind="collect",
                        hint=GIVE_TREE,
                    )
                target = to / path
                (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
                if (content := archive.extractfile(member)) is not None:
                    with content, target.open("wb") as out:
                        shutil.copyfileobj(content, out)
                    target.chmod(0o755 if member.mode & 0o100 else 0o644)
        return next(to.iterdir())
    except (tarfile.TarError, zlib.error, EOFError, StopIteration) as error:
        raise HostFailed(
            f"{sdist.name} is no sdist: {error or 'it is empty'}",
            kind="collect",
            hint=GIVE_TREE,
        ) from None
