"""Sources that look alike: which of them a node is told is the one that delivered before."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.delivery import source_id
from tests.node.test_code_sync import mirror

pytestmark = pytest.mark.usefixtures("own_home")

Places = tuple[Path, Path]


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "node/work"


def project(folder: Path, text: str, git: bool) -> Path:
    folder.mkdir()
    for name in ("a.py", "b.py"):
        (folder / name).write_text(text)
    if git:
        subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def known(folder: Path) -> str:
    return source_id.identified(folder)["id"]


def is_asked(source: Path, dest: Path) -> bool:
    """Returns whether the sync of a changed source is refused, as another source's files are there."""
    (source / "a.py").write_text(os.urandom(8).hex())
    (result,) = mirror(source, dest).results
    assert result.ok or result.error and result.error.kind == "other-source", result.error
    return not result.ok


def moved_away(p: Path, q: Path, git: bool) -> None:
    p.rename(q)
    project(p, "other", git)


def mounted_over(p: Path, q: Path, git: bool) -> None:
    shutil.move(p, q)  # what was there before is back when the mount is gone
    shutil.copytree(project(q.with_name("second"), "other", git), p)


def made_again(p: Path, q: Path, git: bool) -> None:
    inode = p.stat().st_ino
    shutil.copytree(p, q)
    shutil.rmtree(p)
    for number in range(50):  # the file system may give the inode again
        project(p, "other", git)
        if p.stat().st_ino == inode:
            break
        p.rename(p.with_name(f"more{number}"))
    else:
        project(p, "other", git)


@pytest.mark.parametrize("git", [True, False])
@pytest.mark.parametrize("how", [moved_away, mounted_over, made_again])
def test_another_project_at_the_path_is_another_source(
    how: Callable[[Path, Path, bool], None], git: bool, tmp_path: Path, dest: Path
) -> None:
    p, q = project(tmp_path / "p", "1", git), tmp_path / "q"
    assert not is_asked(p, dest)
    how(p, q, git)
    assert is_asked(p, dest), "another project"
    assert not is_asked(q, dest), "the true one, which was moved"


@pytest.mark.parametrize("git", [True, False])
def test_a_source_that_was_moved_is_the_same_and_a_copy_is_not(git: bool, tmp_path: Path, dest: Path) -> None:
    p, q = project(tmp_path / "p", "1", git), tmp_path / "q"
    assert not is_asked(p, dest)
    shutil.copytree(p, q, symlinks=True)
    assert is_asked(q, dest) and not is_asked(p, dest), "cp -r"
    shutil.rmtree(p)
    assert is_asked(q, dest), "it has an id of its own since"
    shutil.rmtree(q)
    other = project(tmp_path / "p", "1", git)
    assert is_asked(other, dest)


def test_a_copy_that_is_first_seen_after_the_source_is_gone_counts_as_moved(tmp_path: Path, dest: Path) -> None:
    p, q = project(tmp_path / "p", "1", True), tmp_path / "q"
    assert not is_asked(p, dest)
    shutil.move(shutil.copytree(p, q), tmp_path / "r")
    shutil.rmtree(p)
    assert not is_asked(tmp_path / "r", dest) and not is_asked((tmp_path / "r").rename(q), dest)


def test_a_witness_that_came_along_is_not_believed(tmp_path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handed archive, an image, a home without its ~/.fleet, another head."""
    p = project(tmp_path / "p", "1", True)
    assert not is_asked(p, dest)
    (tmp_path / "home2").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home2"))
    assert is_asked(p, dest)
    assert mirror(p, dest, force=True).ok and not is_asked(p, dest), "it was agreed to"
    first = Path.home() / ".fleet/source-ids"
    assert first.stat().st_mode & 0o777 == 0o600


def test_two_heads_that_share_a_home_and_not_the_folder(
    tmp_path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, other = project(tmp_path / "scratch", "1", False), tmp_path / "scratch-of-a"
    assert not is_asked(scratch, dest)
    scratch.rename(other)  # as another login node sees it
    monkeypatch.setattr(socket, "gethostname", lambda: "login2")
    project(scratch, "2", False)
    assert is_asked(scratch, dest)
    copied = shutil.copytree(other, tmp_path / "copied")
    other.rename(tmp_path / "unseen")
    assert is_asked(copied, dest), "whether it is gone on the other login node is not known here"


def test_subprojects_of_a_repository_are_sources_of_their_own_and_move_with_it(tmp_path: Path, dest: Path) -> None:
    repository = project(tmp_path / "repo", "1", True)
    one, two = project(repository / "one", "1", False), project(repository / "two", "2", False)
    assert len({known(repository), known(one), known(two)}) == 3
    before = known(one)
    repository.rename(tmp_path / "moved")
    assert known(tmp_path / "moved/one") == before
    assert not (tmp_path / "moved/one/.fleet-source").exists()


def test_work_trees_are_sources_of_their_own_also_copied_ones(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        name = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", *name, "-C", str(tmp_path / "repo"), *words], check=True, capture_output=True)

    repository = project(tmp_path / "repo", "1", True)
    git("add", ".")
    git("commit", "-qm", "1")
    git("worktree", "add", str(tmp_path / "linked"))
    linked = tmp_path / "linked"
    copied = shutil.copytree(linked, tmp_path / "copied")  # its .git names the git-dir of the first
    ids = [known(folder) for folder in (repository, linked, copied)]
    assert len(set(ids)) == 3 and [known(folder) for folder in (copied, linked, repository)] == ids[::-1]
    subprocess.run(["git", "-C", repository, "clean", "-fdxq"], check=True)
    assert known(repository) == ids[0]
    assert subprocess.run(["git", "-C", repository, "status", "--porcelain"], capture_output=True).stdout == b""


def test_a_git_dir_that_a_handed_folder_names_is_left_alone(tmp_path: Path, dest: Path) -> None:
    p = project(tmp_path / "p", "1", True)
    handed = project(tmp_path / "handed", "2", False)
    (handed / ".git").write_text(f"gitdir: {p}/.git\n")
    assert not is_asked(handed, dest) and not (p / ".git/fleet-source").exists()
    assert is_asked(p, dest) and not is_asked(handed, dest)


def test_what_a_source_is_known_by_is_never_sent(tmp_path: Path, dest: Path) -> None:
    p = project(tmp_path / "p", "1", False)
    assert not is_asked(p, dest) and (p / ".fleet-source").is_file()
    assert sorted(path.name for path in dest.iterdir()) == ["a.py", "b.py"]
    subprocess.run(["git", "init", "-q", p], check=True)
    assert not is_asked(p, dest), "a source that became a repository"
    assert sorted(path.name for path in dest.iterdir()) == ["a.py", "b.py"]


def test_where_nothing_can_be_written_path_inode_and_birth_count(
    tmp_path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(source_id, "replace_file", refused)
    p = project(tmp_path / "p", "1", False)
    assert not is_asked(p, dest) and not is_asked(p, dest) and not (p / ".fleet-source").exists()
    made_again(p, tmp_path / "q", False)
    assert is_asked(p, dest)
    monkeypatch.setattr(source_id, "_born", lambda root: "")  # a file system that keeps no time of birth
    assert is_asked(p, dest) and mirror(p, dest, force=True).ok and is_asked(p, dest)
    assert mirror(p, dest, force=True, source_id="ci").ok and mirror(p, dest, source_id="ci").ok


def test_one_folder_by_two_names_is_one_source(tmp_path: Path) -> None:
    """A bind mount; here the look at it is stood in for by a link, which scan() would have resolved."""
    p = project(tmp_path / "p", "1", False)
    (tmp_path / "alias").symlink_to(p)
    assert known(tmp_path / "alias") == known(p) == known(tmp_path / "alias")
