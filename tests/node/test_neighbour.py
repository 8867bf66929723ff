"""A neighbour: somebody with another account on the node, who swaps what is on the way of a sync for links."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory, Report
from tests.node.test_chain import Fleet
from tests.node.test_code_sync import mirror, ok, snapshot

pytestmark = pytest.mark.usefixtures("own_home")
NEIGHBOUR = 12345
ROUNDS = 8

# as long as stdin is open, swaps argv[2] in the folder that is open as argv[1] for a link to argv[3], and back
SWAP = """
import os, select, sys
os.fchdir(int(sys.argv[1]))
name, victim = sys.argv[2:]
while not select.select([0], [], [], 0)[0]:
    for step in ((os.rename, name, "aside"), (os.symlink, victim, name), (os.unlink, name), (os.rename, "aside", name)):
        try:
            step[0](*step[1:])
        except OSError:
            pass
"""


@contextlib.contextmanager
def swapping(name: Path, victim: Path) -> Iterator[None]:
    fd = os.open(name.parent, os.O_RDONLY)
    argv = ["/usr/bin/python3", "-I", "-S", "-c", SWAP, str(fd), name.name, str(victim)]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[fd],
        user=NEIGHBOUR,
        group=NEIGHBOUR,
        extra_groups=[],
    ) as process:
        os.close(fd)
        yield
        assert process.poll() is None
        assert process.communicate()[1] == b""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder in which the neighbour may do anything, as everybody may."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    (folder / "sub").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    for name in ("shadow", "sub/key"):
        (folder / name).write_text("the machine's own\n")
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/key").write_text("a\n")
    (folder / "shadow").write_text("b\n")
    return folder


def change(source: Path, number: int) -> None:
    """Something for every kind of step: a mode, a content, a link, a folder that comes or goes."""
    for name in ("shadow", "sub/key"):
        (source / name).write_text(f"{number}\n")
        (source / name).chmod(0o644 + number % 2)
    (source / "sub").chmod(0o755 if number % 2 else 0o750)
    link, folder = source / "link", source / "sub/more"
    if number % 2:
        link.symlink_to(str(number))
        folder.mkdir()
    else:
        link.unlink(missing_ok=True)
        if folder.is_dir():
            folder.rmdir()


def refused(report: Report) -> str:
    error = report.results[0].error
    return "" if error is None else f"{error.message}; {error.hint}"


def test_code_never_goes_where_a_swapped_link_leads(source: Path, theirs: Path, victim: Path) -> None:
    dest = theirs / "work"
    ok(source, dest)
    before = snapshot(victim)
    with swapping(dest, victim):
        for number in range(ROUNDS):
            change(source, number)
            mirror(source, dest)
            assert snapshot(victim) == before
    ok(source, dest)
    assert (dest / "shadow").read_text() == (source / "shadow").read_text()


def test_data_never_goes_where_a_swapped_link_leads(source: Path, theirs: Path, victim: Path) -> None:
    fleet = Fleet(theirs.parent, 1)
    fleet.inventory = Inventory((Host("n1", "127.0.0.1", workdir=str(theirs)),))
    fleet.ok(source, to="data")
    before = snapshot(victim)
    with swapping(theirs / "data", victim):
        for number in range(ROUNDS):
            change(source, number)
            fleet.send(source, to="data")
            assert snapshot(victim) == before
    fleet.ok(source, to="data")


@pytest.mark.parametrize("inside", [".", "sub"])
def test_folders_that_others_own_or_write_are_refused(source: Path, tmp_path: Path, inside: str) -> None:
    fleet = Fleet(tmp_path, 1)
    for name, deliver, send in (("work", ok, mirror), ("data", fleet.ok, fleet.send)):
        dest = tmp_path / "n1" / name
        where: Any = {"to": name} if name == "data" else {"dest": dest}
        (source / "sub/key").write_text("a\n")
        deliver(source, **where)
        bad = dest / inside
        for act, word in (
            (lambda bad=bad: os.chown(bad, NEIGHBOUR, NEIGHBOUR), f"{bad.resolve()} belongs to user id {NEIGHBOUR}"),
            (lambda bad=bad: (os.chown(bad, 0, 0), bad.chmod(0o777)), f"chmod o-w {bad.resolve()}"),
        ):
            act()
            (source / "sub/key").write_text(word)
            assert word in refused(send(source, **where)) and (dest / "sub/key").read_text() == "a\n"
        bad.chmod(0o1777)
        deliver(source, **where)


@pytest.mark.parametrize(
    "dest",
    [
        "theirs/new",
        "link/work",
        *(pytest.param(dest, marks=pytest.mark.slow) for dest in ("theirs/work", "theirs/more/work")),
    ],
)
def test_a_folder_of_another_user_on_the_way_is_refused(source: Path, tmp_path: Path, dest: str) -> None:
    """Its owner could put another destination in the place of ours, and have a run begin from there."""
    fleet = Fleet(tmp_path, 1)
    parent = tmp_path / "n1/theirs"
    parent.mkdir(parents=True)
    (tmp_path / "n1/link").symlink_to("theirs")
    if not dest.endswith("new"):
        ok(source, parent / "work")
        ok(source, parent / "more/work")
    before = snapshot(parent)
    os.chown(parent, NEIGHBOUR, NEIGHBOUR)
    (source / "shadow").write_text("changed\n")
    word = f"{parent}, on the way there, belongs to user id {NEIGHBOUR}"
    for mode in (0o755, 0o777, 0o1777):
        parent.chmod(mode)
        assert word in refused(mirror(source, tmp_path / "n1" / dest))
        assert word in refused(fleet.send(source, to=dest)) and snapshot(parent) == before
    os.chown(parent, NEIGHBOUR, os.getegid())
    parent.chmod(0o2775)  # our group's, too: it is shared with us
    ok(source, tmp_path / "n1" / dest)
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    os.chown(parent, nobody, nobody)
    parent.chmod(0o777)  # as NFS servers are told to export to everybody
    ok(source, tmp_path / "n1" / dest)


def test_a_user_that_a_container_does_not_know_stands_in_nobodys_way(theirs: Path) -> None:
    """In a container with user ids of its own, what is root's outside of it belongs to the id of nobody."""
    (theirs / "work").mkdir()
    os.chown(theirs, NEIGHBOUR, NEIGHBOUR)
    theirs.chmod(0o755)
    code = "import sys; from fleet.node.base.beneath import reach; reach(sys.argv[1].encode(), way=True)"
    argv = [sys.executable, "-c", code, str(theirs / "work")]
    assert "on the way there, belongs to" in subprocess.run(argv, capture_output=True, text=True).stderr
    subprocess.run(["unshare", "--user", "--map-root-user", *argv], check=True)


def test_what_is_world_writable_here_is_not_so_there(source: Path, tmp_path: Path) -> None:
    dest = tmp_path / "n1" / "work"
    (source / "sub").chmod(0o777)
    ok(source, dest)
    ok(source, dest)
    assert (dest / "sub").stat().st_mode & 0o7777 == 0o775
    fleet = Fleet(tmp_path, 1)
    fleet.ok(source, to="data")
    fleet.ok(source, to="data")
    assert (tmp_path / "n1/data/sub").stat().st_mode & 0o7777 == 0o775
