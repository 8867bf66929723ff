"""Makes a release, but for its upload: `make release VERSION=1.0.0`.

Builds sdist and wheel of a copy of the last commit, which has the new version and its section of the changelog. Only
where both pass all checks they come into dist/, and version and changelog into the tree.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHANGELOG, VERSION = "CHANGELOG.md", "fleet/version.py"
UNRELEASED = "## [Unreleased]\n"


class Refused(Exception):
    """The release cannot be made."""


def run(*argv: str | Path, cwd: Path = ROOT) -> str:
    """Returns what a program printed. Refused where it fails."""
    done = subprocess.run(argv, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{done.stdout.rstrip()}")
    return done.stdout


def git(*words: str) -> list[str]:
    return [name for name in run("git", "-c", "safe.directory=*", *words).split("\0") if name]


def released(changelog: str, version: str, day: str) -> str:
    """Returns the changelog in which what was not released is that version's. Refused where nothing is, or the
    version has a section."""
    if f"\n## [{version}]" in changelog:
        raise Refused(f"{CHANGELOG} has a section of {version} already")
    before, mark, behind = changelog.partition(UNRELEASED)
    if not re.match(r"\s*[^#\s]|\s*###", behind):
        raise Refused(f"{CHANGELOG} has nothing under {UNRELEASED.strip()!r}")
    return f"{before}{mark}\n## [{version}] - {day}\n{behind}"


def check_tree(version: str) -> None:
    """Raises Refused where the tree cannot be released as that version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise Refused(f"{version or 'no version'}: give one as in make release VERSION=1.0.0")
    if changed := [line[3:] for line in git("status", "--porcelain", "-z")]:
        raise Refused(f"the tree is not clean: {', '.join(changed[:5])}; commit that first")
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"version {version} exists: tag v{version}")


def check_contents(sdist: Path, wheel: Path, tracked: Collection[str]) -> None:
    """Raises Refused where the wheel has more than fleet, or the sdist less than the clone."""
    with zipfile.ZipFile(wheel) as archive:
        foreign = [
            name for name in archive.namelist() if not re.match(r"fleet/|fleet_launch-[^/]+\.(dist-info|data)/", name)
        ]
    if foreign:
        raise Refused(f"the wheel has what is not fleet's: {', '.join(foreign[:5])}")
    with tarfile.open(sdist) as packed:
        names = {member.name.partition("/")[2] for member in packed}
    if missing := [name for name in tracked if name not in names and not (ROOT / name).is_symlink()]:
        raise Refused(f"the sdist lacks what 'make test' needs: {', '.join(missing[:5])}; see MANIFEST.in")


def build(version: str, work: Path) -> tuple[str, list[Path]]:
    """Returns the new changelog, and sdist and wheel, checked. Refused."""
    copy, out, env = work / "copy", work / "out", work / "env"
    copy.mkdir()
    run("git", "-c", "safe.directory=*", "archive", "--output", work / "copy.tar", "HEAD")
    run("tar", "-xf", work / "copy.tar", "-C", copy)
    changelog = released((copy / CHANGELOG).read_text("utf-8"), version, time.strftime("%Y-%m-%d"))
    (copy / CHANGELOG).write_text(changelog, "utf-8")
    (copy / VERSION).write_text(with_version((copy / VERSION).read_text("utf-8"), version), "utf-8")
    for name in ("env", "fresh"):
        run(sys.executable, "-m", "venv", work / name)
    print("building", flush=True)
    run(env / "bin/pip", "--disable-pip-version-check", "install", "--quiet", "build", "twine")
    run(env / "bin/python", "-m", "build", "--outdir", out, copy, cwd=work)
    sdist, wheel = *out.glob("*.tar.gz"), *out.glob("*.whl")
    print("checking", flush=True)
    run(env / "bin/twine", "check", "--strict", sdist, wheel)
    check_contents(sdist, wheel, git("ls-files", "-z"))
    run(work / "fresh/bin/pip", "--disable-pip-version-check", "install", "--quiet", wheel, cwd=work)
    if (printed := run(work / "fresh/bin/fleet", "--version", cwd=work).strip()) != f"fleet, version {version}":
        raise Refused(f"the installed wheel calls itself {printed!r}")
    return changelog, [sdist, wheel]


def with_version(text: str, version: str) -> str:
    return re.sub(r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', text)


def main(version: str) -> None:
    check_tree(version)
    released((ROOT / CHANGELOG).read_text("utf-8"), version, "")
    with tempfile.TemporaryDirectory(prefix="fleet-release-") as work:
        changelog, built = build(version, Path(work))
        (ROOT / "dist").mkdir(exist_ok=True)
        for path in built:
            (ROOT / "dist" / path.name).write_bytes(path.read_bytes())
    (ROOT / CHANGELOG).write_text(changelog, "utf-8")
    (ROOT / VERSION).write_text(with_version((ROOT / VERSION).read_text("utf-8"), version), "utf-8")
    files = " ".join(f"dist/{path.name}" for path in built)
    print(f"built and checked: {files}\nchanged: {CHANGELOG}, {VERSION}\nto publish it:")
    print(f"  git commit -am 'Release {version}' && git tag v{version}\n  twine upload {files}")


if __name__ == "__main__":
    try:
        main("".join(sys.argv[1:]))
    except Refused as error:
        sys.exit(f"error: {error}")
