"""`make release`: what it refuses, and what it makes of the changelog. That the packages are sound is judged by
tests/wheel; a release itself downloads its tools."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.release import CHANGELOG, VERSION, Refused, check_contents, released

ROOT = Path(__file__).parents[2]
LOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- a\n\n## [0.9.0] - 2026-01-01\n\n- b\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with what `make release` looks at."""
    clone = tmp_path / "clone"
    for name in ("Makefile", "tools/release.py", VERSION):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text((ROOT / name).read_text())
    (clone / CHANGELOG).write_text(LOG)
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "all of it")
    return clone


def git(clone: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *who, *words], cwd=clone, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})


def refused(clone: Path, version: str) -> str:
    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file() and ".git" not in path.parts}
    argv = ["make", "--no-print-directory", "release", f"VERSION={version}"]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=clone, capture_output=True, text=True, env=environ, timeout=300)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert before == {path: path.read_bytes() for path in before}, "nothing is changed"
    return done.stderr.splitlines()[0]


@pytest.mark.parametrize("version", ["", "1", "1.0", "v1.0.0", "1.0.0 2.0.0"])
def test_what_is_no_version_is_refused(version: str, clone: Path) -> None:
    assert "give one as in make release VERSION=1.0.0" in refused(clone, version)


def test_a_tree_that_is_not_clean_is_refused(clone: Path) -> None:
    (clone / "new.py").write_text("")
    assert refused(clone, "1.0.0") == "error: the tree is not clean: new.py; commit that first"


def test_a_version_that_exists_is_refused(clone: Path) -> None:
    assert refused(clone, "0.9.0") == "error: CHANGELOG.md has a section of 0.9.0 already"
    git(clone, "tag", "v0.9.1")
    assert refused(clone, "0.9.1") == "error: version 0.9.1 exists: tag v0.9.1"


def test_what_was_unreleased_is_the_versions(clone: Path) -> None:
    text = released(LOG, "1.0.0", "2026-11-29")
    assert text == LOG.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [1.0.0] - 2026-11-29\n")
    with pytest.raises(Refused, match="nothing under"):
        released(text, "1.0.1", "2026-11-30")
    (clone / CHANGELOG).write_text(text)
    git(clone, "commit", "-qam", "released")
    assert refused(clone, "1.0.1") == "error: CHANGELOG.md has nothing under '## [Unreleased]'"


def test_the_changelog_here_can_be_released_and_begins_with_one_page() -> None:
    text = (ROOT / CHANGELOG).read_text("utf-8")
    assert "## [9.9.9] - today\n" in released(text, "9.9.9", "today")
    first = text.split("\n## ")[1]
    assert len(first.splitlines()) <= 60


def packages(folder: Path, packed: list[str], installed: list[str]) -> tuple[Path, Path]:
    sdist, wheel = folder / "a.tar.gz", folder / "a.whl"
    with tarfile.open(sdist, "w:gz") as tar:
        for name in packed:
            tar.addfile(tarfile.TarInfo(f"fleet_launch-1.0.0/{name}"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in installed:
            archive.writestr(name, "")
    return sdist, wheel


def test_the_wheel_has_no_tests_and_the_sdist_has_them(tmp_path: Path) -> None:
    tracked, own = ["Makefile", "tests/a.py", "fleet/a.py"], ["fleet/a.py", "fleet_launch-1.0.0.dist-info/METADATA"]
    check_contents(*packages(tmp_path, tracked, own), tracked)
    with pytest.raises(Refused, match=r"what is not fleet's: tests/a\.py"):
        check_contents(*packages(tmp_path, tracked, [*own, "tests/a.py"]), tracked)
    with pytest.raises(Refused, match=r"the sdist lacks what 'make test' needs: tests/a\.py"):
        check_contents(*packages(tmp_path, ["Makefile", "fleet/a.py"], own), tracked)


def test_it_needs_python_alone() -> None:
    """A release can be made on a machine on which nothing of the tests is installed."""
    program = "import tools.release, sys; print(*{m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, '.'); {program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert {"click", "fleet", "paramiko", "yaml"} & {*done.stdout.split()} == set() and done.returncode == 0
