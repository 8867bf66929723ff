"""setup-ssh where hosts share a home folder, as over NFS: made once, and undone once, whichever hosts begin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.setup_ssh_tools import Head

# a mount of one namespace, taken into others
SHARE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
OPEN_TREE, MOVE_MOUNT, HERE, CLONE, EMPTY_PATH, NEWNS = 428, 429, -100, 1, 4, 0x20000
spaces = [os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY) for pid in sys.argv[1:]]
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
for other in spaces[1:]:
    checked(libc.setns(spaces[0], NEWNS))
    tree = checked(libc.syscall(OPEN_TREE, HERE, b"/root", CLONE))
    checked(libc.setns(other, NEWNS))
    checked(libc.syscall(MOVE_MOUNT, tree, b"", HERE, b"/root", EMPTY_PATH))
"""


@pytest.fixture(scope="module")
def sharing(breakable: BreakableLab) -> BreakableLab:
    """Four hosts; the last has a home of its own."""
    lab = breakable
    pids = [str(lab.hosts[name]["pid"]) for name in lab.names[:3]]
    subprocess.run([sys.executable, "-c", SHARE, *pids], check=True)
    lab.sh(lab.names[0], "touch /root/shared")
    assert lab.sh(lab.names[2], "ls /root/shared") and not lab.sh(lab.names[3], "ls /root/shared", check=False)
    lab.sh(lab.names[0], "rm /root/shared")
    return lab


@pytest.mark.parametrize("mesh", [(), pytest.param(("--no-mesh",), marks=pytest.mark.slow)], ids=["mesh", "no-mesh"])
def test_a_home_of_three_hosts(
    sharing: BreakableLab, tmp_path_factory: pytest.TempPathFactory, mesh: tuple[str, ...]
) -> None:
    home = tmp_path_factory.mktemp("home")
    head = Head(sharing, home, home / "fleet.yaml")
    head.write_inventory({name: {} for name in sharing.names})
    before = {name: sharing.sh(name, "ls -A /root/.ssh 2>/dev/null", check=False) for name in sharing.names}
    for _ in range(2):
        done = head.setup("--tofu", *mesh)
        assert done.returncode == 0, done.stderr
    assert head.fleet("exec", "--", "true").returncode == 0
    assert sharing.sh(sharing.names[1], "grep -c . /root/.ssh/authorized_keys") == ("1" if mesh else "3")
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert before == {name: sharing.sh(name, "ls -A /root/.ssh 2>/dev/null", check=False) for name in sharing.names}
    assert "nothing to undo" in head.fleet("setup-ssh", "--undo").stderr
