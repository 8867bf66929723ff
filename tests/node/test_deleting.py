"""A source that was emptied: nothing is deleted before somebody agreed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory, Report
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport

pytestmark = pytest.mark.usefixtures("own_home")


def mirror(
    source: Path, dest: Path, agree: bool | None = None, asked: list[str] | None = None, **options: Any
) -> Report:
    def ask(question: str) -> bool | None:
        if asked is not None:
            asked.append(question)
        return agree

    plan = sync.plan(Inventory((Host("n1", "127.0.0.1"),)), Sync(source, str(dest), **options))
    return sync.run(plan, Runtime(LocalTransport(), ask=ask))


def files(folder: Path, count: int, prefix: str = "f") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{prefix}{number}.py").write_text(f"{folder.name} {prefix} {number}")


def number(dest: Path) -> int:
    return sum(path.is_file() for path in dest.rglob("*.py"))


def empty(source: Path) -> None:
    """rm *"""
    for path in source.glob("[!.]*"):
        path.unlink()


def more_than_half(source: Path) -> None:
    for n in range(13):
        (source / f"f{n}.py").unlink()


def a_folder(source: Path) -> None:
    shutil.rmtree(source / "sub")


@pytest.mark.parametrize(
    ("made", "lost", "deleted"),
    [
        (lambda s: files(s, 5), empty, 5),
        (lambda s: files(s, 25), more_than_half, 13),
        (lambda s: (files(s, 90), files(s / "sub", 20)), a_folder, 20),
    ],
)
def test_what_was_emptied_needs_consent(
    made: Callable[[Path], object], lost: Callable[[Path], None], deleted: int, tmp_path: Path
) -> None:
    source, dest, asked = tmp_path / "src", tmp_path / "work", list[str]()
    made(source)
    assert mirror(source, dest).ok
    before = number(dest)
    lost(source)
    (source / "new.py").write_text("news") if deleted != 5 else None
    for options in ({}, {"force": True}, {"max_delete": deleted - 1}):
        report = mirror(source, dest, **options)
        (result,) = report.results
        assert report.exit_code == 2 and result.error is not None and result.error.kind == "max-delete"
        assert f"{deleted} of the {before} files" in result.error.message and "nothing was sent" in result.error.message
        assert f"--max-delete={deleted}" in str(result.error.hint) and number(dest) == before
        assert ("--force" in str(result.error.hint)) == ("force" in options)
    assert mirror(source, dest, agree=False, asked=asked).exit_code == 2
    assert number(dest) == before and "would be deleted" in asked[0] and asked[0].endswith("Delete them?")
    assert mirror(source, dest, max_delete=deleted).ok and number(dest) == number(source)


def test_consent_is_given_at_a_terminal_or_by_all(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    for options in ({"agree": True}, {"max_delete": "all"}):
        files(source, 4)
        assert mirror(source, dest).ok
        empty(source)
        assert mirror(source, dest, **options).results[0].data["deleted"] == 4


def test_a_file_system_that_is_not_mounted_says_so_first(tmp_path: Path) -> None:
    """What the source is known by is away, too."""
    source, dest = tmp_path / "src", tmp_path / "work"
    files(source, 5)
    assert mirror(source, dest).ok
    source.rename(tmp_path / "unmounted")
    source.mkdir()
    refused = mirror(source, dest)
    assert refused.exit_code == 2 and "--force --max-delete=5" in str(refused.results[0].error.hint)  # type: ignore[union-attr]
    assert mirror(source, dest, force=True, max_delete=5).ok and number(dest) == 0


def test_what_is_moved_is_not_lost(tmp_path: Path) -> None:
    """git mv of a folder, and of all."""
    source, dest = tmp_path / "src", tmp_path / "work"
    files(source / "pkg", 30)
    (source / "a.py").write_text("a")
    assert mirror(source, dest).ok
    (source / "pkg").rename(source / "renamed")
    assert mirror(source, dest).ok and number(dest) == 31
    (source / "inner").mkdir()
    (source / "renamed").rename(source / "inner/renamed")
    (source / "a.py").rename(source / "inner/a.py")
    assert mirror(source, dest).ok and number(dest) == 31


def test_half_of_few_files_and_a_folder_of_few_need_no_consent(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    files(source, 6)
    files(source / "sub", 13)
    assert mirror(source, dest).ok
    shutil.rmtree(source / "sub")
    assert mirror(source, dest).ok and number(dest) == 6


def test_what_another_source_put_there_is_limited_though_it_is_forced(tmp_path: Path) -> None:
    a, b, dest = tmp_path / "a", tmp_path / "b", tmp_path / "work"
    files(a, 5)
    files(b, 2, "g")
    assert mirror(a, dest).ok
    error = mirror(b, dest).results[0].error
    assert error and error.kind == "other-source" and "--force --max-delete=5" in str(error.hint)
    assert mirror(b, dest, force=True).exit_code == 2 and number(dest) == 5
    assert mirror(b, dest, force=True, max_delete=5).ok and number(dest) == 2
