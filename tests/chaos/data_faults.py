"""What befalls a broadcast of data: no file has its name before it is whole, and the next one brings the rest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

from tests.chaos.ground import Ground, said, until, wait
from tests.chaos.sync_faults import errors, program_killed, signalled, tally
from tests.chaos.table import Fault, Seen

SIZE = 24_000_000  # 4.8 s at 40 Mbit/s
FILE = "/srv/data/model.bin"
DATA = ("-i", "lab", "sync", "--data", "model.bin:/srv/data/")


def verdict(ground: Ground, digest: str) -> str:
    """Which hosts have the whole file; one that has anything else under its name is named loudly."""
    seen = {
        host: ground.lab.sh(host, f"test -e {FILE} && sha256sum <{FILE}", check=False)[:64] for host in ground.names
    }
    return tally({host: {digest: "whole", "": "none"}.get(sums, "PART UNDER ITS NAME") for host, sums in seen.items()})


def parts(ground: Ground) -> str:
    """Blocks of 4 MiB, which are kept and verified one by one, have reached the last node."""
    return ground.lab.sh(ground.names[-1], "find /srv/data -path '*/stage*' -size +8M 2>/dev/null", check=False)


def prepare(ground: Ground, rate: str = "40mbit") -> str:
    ground.made.append("/srv")
    (ground.folder / "model.bin").write_bytes(os.urandom(SIZE))
    ground.slow(rate)
    return hashlib.sha256((ground.folder / "model.bin").read_bytes()).hexdigest()


def amid(act: Callable[[Ground], Any]) -> Callable[[Ground], Seen]:
    """A broadcast; act when the last node gets some of it. The next one sends what is missing."""

    def go(ground: Ground) -> Seen:
        digest = prepare(ground, "10mbit")
        process = ground.start(*DATA)
        until(lambda: process.poll() is not None or parts(ground), "data on the last node")
        act(ground)
        ground.fast(*(host for host in ground.names if host != ground.names[1]))
        code = wait(process)
        before = verdict(ground, digest)
        ground.undo.close()
        again = ground.fleet("--json", *DATA)
        # what a host lacked; more leaves the source where a link is renewed, as on a busy machine
        hosts = json.loads(again.stdout)["hosts"].values() if again.returncode == 0 else ()
        lacked = max((host["bytes"] for host in hosts), default=again.stdout + again.stderr)
        less = "the rest" if isinstance(lacked, int) and lacked < SIZE else f"sent {lacked}"
        return Seen(code, errors(said(process)), f"{before}; then {less}: {verdict(ground, digest)}")

    return go


def two_at_once(ground: Ground) -> Seen:
    digest = prepare(ground)
    processes = [ground.start(*DATA) for _ in range(2)]
    codes = [wait(process) for process in processes]
    return Seen(max(codes), f"codes {codes} {errors(''.join(map(said, processes)))}", verdict(ground, digest))


def source_changes(ground: Ground) -> Seen:
    digest = prepare(ground)
    process = ground.start(*DATA)
    until(lambda: process.poll() is not None or parts(ground), "data on the last node")
    with (ground.folder / "model.bin").open("r+b") as file:
        for at in (1, SIZE // 2, SIZE - 10):
            file.seek(at)
            file.write(b"changed")
    code = wait(process)
    before = verdict(ground, digest)
    digest = hashlib.sha256((ground.folder / "model.bin").read_bytes()).hexdigest()
    again = ground.fleet(*DATA)
    return Seen(code, errors(said(process)), f"{before}; then exit {again.returncode}: {verdict(ground, digest)}")


def full_disk(ground: Ground) -> Seen:
    digest, victim = prepare(ground), ground.names[1]
    ground.lab.sh(victim, "mkdir -p /srv/data && mount -t tmpfs -o size=8m tmpfs /srv/data")
    ground.undo.callback(ground.lab.sh, victim, "umount -l /srv/data")
    process = ground.start(*DATA)
    code = wait(process)
    before = verdict(ground, digest)
    ground.lab.sh(victim, "mount -o remount,size=64m /srv/data")
    again = ground.fleet(*DATA)
    return Seen(code, errors(said(process)), f"{before}; then exit {again.returncode}: {verdict(ground, digest)}")


REST = "all none; then the rest: all whole"
BUT_2 = "whole at the others, none at lab02; then the rest: all whole"
FAULTS = (
    Fault("data: the head is killed -9", amid(signalled(9)), -9, "", REST),
    Fault("data: Ctrl-C", amid(signalled(2)), 130, "interrupted", REST),
    Fault(
        "data: a middle node's program is killed -9", amid(program_killed(1)), 1, "host lab02: .*exit status 137", BUT_2
    ),
    Fault(
        "data: a middle node is powered off",
        amid(lambda g: g.power_off(g.names[1])),
        122,
        "host lab02: ",
        "whole at the others, none at lab02; then sent 24000000: all whole",
    ),
    Fault("data: a middle node is frozen", amid(lambda g: g.lame("freeze", g.names[1])), 122, "host lab02: ", BUT_2),
    Fault("data: a middle node is cut", amid(lambda g: g.lame("cut", g.names[1])), 122, "host lab02: ", BUT_2),
    Fault(
        "data: a disk is full, then freed",
        full_disk,
        1,
        "host lab02: .*are to be written.*nothing was sent, because of host lab02",
        "all none; then exit 0: all whole",
    ),
    Fault("data: two at once", two_at_once, 0, r"codes \[0, 0\]", "all whole"),
    Fault("data: the source changes", source_changes, 1, "model.bin.*chang", "all none; then exit 0: all whole"),
)
