"""Table 3: one file to many nodes over links that are the limit, the head's among them."""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.fleet_lab import FLEET, BenchLab
from tests.bench.harness import Contestant, Done, command

AIMS = {"fleet, 1 node": 1.15, "rsync star": 0.1}
TO = "/data/f"
RELAY = """#!/bin/sh
# each node writes and sends on: NEXT...
next=$1; [ -z "$next" ] && exec cat > /data/f
shift; tee /data/f | ssh "$next" sh /data/relay "$@"
"""


def file_of(lab: BenchLab, size: int) -> Path:
    path = lab.home / "f"
    path.write_bytes(os.urandom(size))
    return path


def arrived(lab: BenchLab, path: Path, names: Sequence[str]) -> Callable[[Done], str | None]:
    """Every node has the file; then it is removed, for the next run."""
    want = hashlib.sha256(path.read_bytes()).hexdigest()

    def check(done: Done) -> str | None:
        line = f"sha256sum < {TO}; rm -rf {TO} /data/.f.fleet-data"
        said = lab.fleet("-w", ",".join(names), "exec", "--shell", line)
        if done.status or said.count(want) != 1 or said.count("  -") != 1:
            return f"exit status {done.status}, or wrong data: {done.output[-200:]!r}"
        return None

    return check


def contestants(lab: BenchLab, size: int) -> tuple[Contestant, list[Contestant]]:
    """(fleet to all nodes, peers). size: bytes."""
    path = file_of(lab, size)
    names, config = lab.names, str(lab.ssh_config)
    relay = lab.home / "relay"
    relay.write_text(RELAY)
    lab.fleet("sync", "--data", f"{relay}:/data/relay")
    check = arrived(lab, path, names)

    def fleet(name: str, nodes: Sequence[str]) -> Contestant:
        argv = [FLEET, "-i", "lab", "-w", ",".join(nodes), "sync", "--data", f"{path}:{TO}"]
        return Contestant(name, command(argv, lab.env), arrived(lab, path, nodes))

    def shell(name: str, line: str, missing: str | None = None, once: bool = True, **env: str) -> Contestant:
        return Contestant(name, command(["bash", "-c", line], {**lab.env, **env}), check, missing, once)

    quoted = shlex.quote(str(path))
    ssh = f"ssh -F {shlex.quote(config)}"
    star = "".join(f'rsync -e {shlex.quote(ssh)} {quoted} {name}:{TO} & p="$p $!"\n' for name in names) + "wait $p"
    chain = f"{ssh} {names[0]} sh /data/relay {' '.join(itertools.islice(names, 1, None))} < {quoted}"
    taktuk = f"taktuk -c {shlex.quote(ssh)} {' '.join(f'-m {n}' for n in names)} broadcast put [ {quoted} ] [ {TO} ]"
    return fleet(f"fleet, {len(names)} nodes", names), [
        fleet("fleet, 1 node", names[:1]),
        shell("rsync star", star),
        shell(
            "pdcp",
            f"pdcp -R ssh -f 64 -w {','.join(names)} {quoted} {TO}",
            None if shutil.which("pdcp") else "not installed",
            PDSH_SSH_ARGS_APPEND="",
            PDSH_SSH_ARGS=f"-F {config} -a -x -l%u %h",
        ),
        shell("ssh chain, nothing verified", chain, once=False),
        shell("taktuk", taktuk, None if shutil.which("taktuk") else "not installed"),
    ]
