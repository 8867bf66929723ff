"""What befalls a sync of code: each host's tree is all old or all new, and the next sync brings all of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.ground import Ground, said, until, wait
from tests.chaos.table import Fault, Seen

DEST = "/srv/tree"
SUMS = "cd {} 2>/dev/null && find . -type f -print0 | sort -z | xargs -0r sha256sum | sha256sum"
SYNC = ("-i", "lab", "sync", "src", "--to", DEST)
# Swaps a folder of the destination for a link to /etc and back, as a neighbour with an account of its own does.
SWAP = """
import os
os.chdir(%r)
os.setgid(12345); os.setuid(12345)
while True:
    for step in (("rename", "pkg", "aside"), ("symlink", "/mnt/victim", "pkg"), ("unlink", "pkg"),
                 ("rename", "aside", "pkg")):
        try:
            getattr(os, step[0])(*step[1:])
        except OSError:
            pass
"""


class Trees:
    """A source of two versions, of which the old one is on all hosts; and what of it a host has."""

    def __init__(self, ground: Ground, size: int = 3 << 20) -> None:
        self.ground, self.source, self.size = ground, ground.folder / "src", size
        ground.made.append("/srv")
        (self.source / "pkg").mkdir(parents=True)
        self.old = self.write("old")
        ground.fleet(*SYNC, check=True)
        self.new = self.write("new")

    def write(self, version: str) -> str:
        for i in range(300):
            (self.source / f"pkg/f{i:03}").write_text(f"{version} {i}\n")
        (self.source / "large").write_bytes(os.urandom(self.size))
        return sums(self.source)

    def at(self, host: str) -> str:
        seen = self.ground.lab.sh(host, SUMS.format(DEST), check=False)
        return {self.old: "old", self.new: "new", "": "empty"}.get(seen, "MIXED")

    def verdict(self) -> str:
        """all new, all old, or whose tree is which."""
        return tally({host: self.at(host) for host in self.ground.names})

    def healed(self, code: int, cause: str) -> Seen:
        """What the fault left, and after one more sync."""
        before = self.verdict()
        again = self.ground.fleet(*SYNC)
        after = self.verdict() if again.returncode == 0 else f"exit {again.returncode}: {again.stderr}"
        return Seen(code, cause, f"{before}; then {after}")


def tally(at: dict[str, str]) -> str:
    """What is at which host, in short: what is at most of them is at the others."""
    usual = max(at.values(), key=list(at.values()).count)
    odd = [f"{kind} at {host}" for host, kind in at.items() if kind != usual]
    return ", ".join([f"{usual} at the others" if odd else f"all {usual}", *odd])


def sums(folder: Path) -> str:
    return os.popen(SUMS.format(folder)).read().strip()  # noqa: S605 (a path of our own)


def staging(ground: Ground, host: str) -> str:
    """What of the new large file has reached a host by now."""
    return ground.lab.sh(host, "find /srv/.tree.fleet-sync -type f -size +64k 2>/dev/null", check=False)


def errors(text: str) -> str:
    return " ".join(line for line in text.splitlines() if "hint:" not in line)


def amid(act: Callable[[Ground], None]) -> Callable[[Ground], Seen]:
    """A sync of the new tree over slow links; act while its large file is on the way."""

    def go(ground: Ground) -> Seen:
        trees = Trees(ground)
        ground.slow("1mbit")
        process = ground.start(*SYNC)
        until(lambda: process.poll() is not None or staging(ground, ground.names[2]), "a file on the way")
        act(ground)
        ground.fast(*(host for host in ground.names if host != ground.names[2]))
        code = wait(process)
        cause = errors(said(process))
        ground.undo.close()
        return trees.healed(code, cause)

    return go


def signalled(number: int) -> Callable[[Ground], None]:
    """The head's process gets this signal."""

    def go(ground: Ground) -> None:
        for words in ground.head_processes():
            if " -i lab sync " in words:
                os.kill(int(words.split()[0]), number)

    return go


def full_disk(ground: Ground) -> Seen:
    """No room on one host, then room: the tree is all old until the next sync brings all of the new one."""
    trees, victim = Trees(ground), ground.names[1]
    ground.lab.sh(
        victim, "mkdir /mnt/was; cp -a /srv/. /mnt/was; mount -t tmpfs -o size=5m tmpfs /srv; cp -a /mnt/was/. /srv"
    )
    ground.undo.callback(ground.lab.sh, victim, "umount -l /srv; rm -rf /mnt/was")
    process = ground.start(*SYNC)
    code = wait(process)
    ground.lab.sh(victim, "mount -o remount,size=64m /srv")
    return trees.healed(code, errors(said(process)))


def program_killed(number: int) -> Callable[[Ground], None]:
    """The program that receives on that node."""

    def go(ground: Ground) -> None:
        line = "for p in $(pgrep -f '^sshd: root@notty'); do pkill -9 -P $p; done"
        ground.lab.sh(ground.names[number], line, check=False)

    return go


def two_at_once(ground: Ground) -> Seen:
    """Two syncs of one tree to one place: one waits for the other."""
    trees = Trees(ground)
    processes = [ground.start(*SYNC) for _ in range(2)]
    codes = [wait(process) for process in processes]
    return trees.healed(max(codes), f"codes {codes} " + errors("".join(map(said, processes))))


def two_sources(ground: Ground) -> Seen:
    """Two different trees to one place: one wins whole, the other one says so."""
    trees = Trees(ground)
    (ground.folder / "other").mkdir()
    (ground.folder / "other/f").write_text("another project\n")
    first = ground.start(*SYNC)
    second = ground.start("-i", "lab", "sync", "other", "--to", DEST)
    codes = [wait(first), wait(second)]
    return trees.healed(max(codes), f"codes {codes} " + errors(said(second)))


def source_changes(ground: Ground) -> Seen:
    """The large file is written to, again and again, while it is sent."""
    trees = Trees(ground)
    ground.slow("8mbit")
    process = ground.start(*SYNC)
    until(lambda: process.poll() is not None or staging(ground, ground.names[2]), "a file on the way")
    while process.poll() is None:
        with (trees.source / "large").open("r+b") as file:
            file.seek(trees.size // 2)
            file.write(os.urandom(1 << 20))
        time.sleep(0.2)
    code = wait(process)
    trees.new = sums(trees.source)
    ground.undo.close()
    return trees.healed(code, errors(said(process)))


def links(ground: Ground) -> Seen:
    """A neighbour owns a folder of the destination and swaps it for a link, while one sync follows the other."""
    trees, host = Trees(ground), ground.names[1]
    ground.made.append("/mnt/victim")
    look = "cd /mnt/victim && find . -printf '%p %m %u %s\\n' | sort; sha256sum f*"
    ground.lab.sh(
        host,
        "mkdir -m 700 /mnt/victim && echo mine >/mnt/victim/f000 && chmod 600 /mnt/victim/f000; "
        f"chown 12345 {DEST} {DEST}/pkg",
    )
    before = ground.lab.sh(host, look)
    ground.lab.inside(host, "sh", "-c", 'setsid python3 -c "$0" >/dev/null 2>&1 & echo $! >/mnt/swapper', SWAP % DEST)
    done = [ground.fleet(*SYNC) for _ in range(3)]
    ground.lab.sh(
        host,
        "p=$(cat /mnt/swapper); kill -9 $p; while [ -e /proc/$p/exe ]; do sleep 0.1; done; "
        f"rm /mnt/swapper; cd {DEST}; test -L pkg && rm pkg; test -d aside && mv aside pkg; "
        f"chown -R root {DEST}",
    )
    untouched = "untouched outside" if ground.lab.sh(host, look) == before else "TOUCHED OUTSIDE"
    seen = trees.healed(max(d.returncode for d in done), errors(done[-1].stderr))
    return Seen(seen.code, seen.cause, f"{untouched}; {seen.digests}")


BACK = "all old; then all new"
PART = "new at the others, old at lab03; then all new"
FAULTS = (
    Fault("sync: the head is killed -9", amid(signalled(9)), -9, "", BACK),
    Fault("sync: Ctrl-C", amid(signalled(2)), 130, "interrupted", BACK),
    Fault("sync: a node's program is killed -9", amid(program_killed(2)), 1, "host lab03: .*exit status 137", PART),
    Fault(
        "sync: a node is powered off",
        amid(lambda g: g.power_off(g.names[2])),
        122,
        "host lab03: ",
        "new at the others, empty at lab03; then all new",
    ),  # it comes back without its disk
    Fault("sync: a node is frozen", amid(lambda g: g.lame("freeze", g.names[2])), 122, "host lab03: ", PART),
    Fault("sync: a node is cut", amid(lambda g: g.lame("cut", g.names[2])), 122, "host lab03: ", PART),
    Fault(
        "sync: a disk is full, then freed",
        full_disk,
        1,
        "host lab02: .*are to be written",
        "new at the others, old at lab02; then all new",
    ),
    Fault("sync: two at once", two_at_once, 0, r"codes \[0, 0\]", "all new; then all new"),
    Fault(
        "sync: two trees to one place",
        two_sources,
        123,
        r"codes \[0, 123\].*files would be deleted",
        "all new; then all new",
    ),
    Fault("sync: the source changes", source_changes, 1, "large.*chang", BACK),
    Fault(
        "sync: a neighbour swaps links",
        links,
        1,
        "lab02",
        "untouched outside; new at the others, old at lab02; then all new",
    ),
)
