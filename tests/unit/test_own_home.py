"""The user's own folders on the head: ~/.fleet, whoever makes it, and what is asked of any of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fleet.delivery.brought import record_files
from fleet.errors import UsageError
from fleet.lab.state import Folder
from tests.in_process import fleet_here, typed

NEIGHBOUR = 12345


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/secret").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    text = "hosts: {a: {address: 127.0.0.1}}\nsync: {data: [../secret:TO]}\n"
    (tmp_path / "elsewhere/fleet.yaml").write_text(
        text.replace("../secret", f"{tmp_path}/work/secret").replace("TO", f"{tmp_path}/got")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_LAB_DIR", raising=False)
    return tmp_path


def theirs(path: Path) -> None:
    os.chown(path, NEIGHBOUR, NEIGHBOUR, follow_symlinks=False)


def test_where_modes_mean_nothing_they_are_not_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a disk of another machine's: vfat, or what a share of Windows looks like. No kernel of a test has those."""
    (here / "runs").mkdir()
    (here / "runs").chmod(0o777)
    assert typed(["runs"]) == 2 and "every user" in capfd.readouterr().err

    def made_in(folder: bytes) -> os.stat_result:
        return os.stat_result((stat.S_IFREG | 0o777, *os.stat(folder)[1:]))

    monkeypatch.setattr("fleet.node.base.beneath.made_in", made_in)
    assert typed(["runs"]) == 0


def make(maker: str) -> None:
    """UsageError where it is refused."""
    if maker == "lab":
        Folder().create()
    elif maker == "get":
        record_files(Path.home(), {})
    elif maker == "sync":
        fleet_here("a").sync(Path.home() / "work", str(Path.home() / "there"))
    else:
        (Path.home() / ".fleet/agreed").unlink(missing_ok=True)
        words = ["-i", "elsewhere/fleet.yaml", "--transport", "local", "sync", "--yes"]
        if typed(words) == 2:
            raise UsageError(f"belongs to user id {NEIGHBOUR}")


@pytest.mark.parametrize("maker", ["lab", "agreed", "get", "sync"])
def test_the_home_of_fleet_is_its_users_alone(here: Path, maker: str) -> None:
    before = os.umask(0o022)
    try:
        make(maker)
        assert stat.S_IMODE((here / ".fleet").stat().st_mode) == 0o700
        (here / ".fleet").chmod(0o755)  # as older versions left it
        make(maker)
        assert stat.S_IMODE((here / ".fleet").stat().st_mode) == 0o700
    finally:
        os.umask(before)
    theirs(here / ".fleet")
    with pytest.raises(UsageError, match=f"belongs to user id {NEIGHBOUR}"):
        make(maker)
    (here / ".fleet").rename(here / "moved")
    os.chown(here / "moved", os.geteuid(), os.getegid())
    (here / ".fleet").symlink_to("moved")
    make(maker)
    theirs(here / ".fleet")
    with pytest.raises(UsageError, match=f"belongs to user id {NEIGHBOUR}"):
        make(maker)
