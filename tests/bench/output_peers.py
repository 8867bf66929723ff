"""What a rank's output costs on its way through a pipe, the node's disk and the link into the head's log."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from tests.bench.fleet_lab import FLEET, BenchLab
from tests.bench.harness import Contestant, Done, command

# title -> (ranks, a line for sh, bytes of each rank)
BLOCKS = "head -c 300000000 /dev/zero | tr '\\0' x"
LINES = "python3 -uc 'for n in range(125000): print(\"%06d a short line\" % n)'"
CASES = {
    "300 MB from one rank": (1, BLOCKS, 300_000_000),
    "8 ranks, 1,000,000 short lines, each flushed": (8, LINES, 125_000 * 20),
}


def contestants(lab: BenchLab, case: str) -> tuple[Contestant, list[Contestant]]:
    """(fleet, peers); on one host. By hand one rank's output comes through ssh, that of several stays on the node."""
    ranks, line, size = CASES[case]
    (name,) = lab.names

    def all_there(folder: Path, pattern: str) -> Callable[[Done], str | None]:
        def check(done: Done) -> str | None:
            logs = {path: path.stat().st_size for path in folder.glob(pattern)}
            for path in logs:
                path.unlink()
            if done.status or list(logs.values()) != [size] * ranks:
                return f"exit status {done.status}, {logs}: {done.output[-300:]!r}"
            return None

        return check

    def counted(done: Done) -> str | None:
        is_whole = done.output.split() == [str(size)] * ranks
        return None if is_whole else f"exit status {done.status}: {done.output[-300:]!r}"

    argv = [FLEET, "-i", "lab", "launch", "--engine", "command", "--nproc-per-node", str(ranks), "--workdir", "/root"]
    argv += ["--ranks", "first", "sh", "-c", line]
    own = command(["sh", "-c", f"{shlex.join(argv)} > /dev/null"], lab.env, str(lab.home))
    ssh = f"ssh -F {shlex.quote(str(lab.ssh_config))} {name} "
    if ranks == 1:
        hand = f"{ssh}{shlex.quote(line)} > hand.out"
        wrote = all_there(lab.home, "hand.out")
    else:
        each = f"for r in $(seq {ranks}); do {line} > /srv/hand.$r & done; wait; stat -c %s /srv/hand.*; rm /srv/hand.*"
        hand, wrote = f"{ssh}{shlex.quote(each)}", counted
    return (
        Contestant("fleet", own, all_there(lab.home, "runs/*-*/*/rank*.out")),
        [Contestant("bare ssh", command(["sh", "-c", hand], lab.env, str(lab.home)), wrote)],
    )
