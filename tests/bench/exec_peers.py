"""Table 1: `hostname` on many hosts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench.fleet_lab import BIN, FLEET, BenchLab
from tests.bench.harness import Contestant, Done, command

AIMS = {"pdsh": 0.35, "pyinfra": 1.0, "bare fabric": 1.0}
PYINFRA = [BIN.parent / "peers/bin/pyinfra", BIN / "pyinfra"]


def all_answered(lab: BenchLab) -> Callable[[Done], str | None]:
    def check(done: Done) -> str | None:
        absent = [name for name in lab.names if name not in done.output]
        if done.status or absent:
            return f"exit status {done.status}, {len(absent)} hosts did not answer: {done.output[-200:]!r}"
        return None

    return check


def contestants(lab: BenchLab) -> tuple[Contestant, list[Contestant]]:
    """(fleet, peers), all with a fan-out of 64, one process each, nothing kept open between runs."""
    check = all_answered(lab)
    hosts = ",".join(lab.names)
    config = str(lab.ssh_config)

    def peer(name: str, path: str | Path | None, argv: list[str], **env: str) -> Contestant:
        missing = None if path else "not installed"
        return Contestant(name, command([str(path), *argv], {**lab.env, **env}), check, missing)

    pyinfra_inventory = lab.home / "pyinfra_hosts.py"
    data = {
        "ssh_user": "root",
        "ssh_key": str(lab.key),
        "ssh_config_file": config,
        "ssh_known_hosts_file": str(lab.known_hosts),
        "ssh_strict_host_key_checking": "yes",
    }
    entries = [(name, {"ssh_hostname": address, **data}) for name, address in lab.addresses.items()]
    pyinfra_inventory.write_text(f"hosts = {entries!r}\n")
    bare = [f"{name}={address}" for name, address in lab.addresses.items()]
    return (
        peer("fleet", FLEET, ["-i", "lab", "exec", "--", "hostname"]),
        [
            peer(
                "pdsh",
                shutil.which("pdsh"),
                ["-R", "ssh", "-f", "64", "-w", hosts, "hostname"],
                PDSH_SSH_ARGS=f"-F {config} -a -x -l%u %h",
            ),
            peer(
                "clush",
                shutil.which("clush", path="/usr/bin") or shutil.which("clush"),
                ["-f", "64", "-w", hosts, "-o", f"-F {config}", "hostname"],
            ),
            peer(
                "pyinfra",
                next(filter(Path.exists, PYINFRA), None),
                ["-y", str(pyinfra_inventory), "exec", "--", "hostname"],
            ),
            peer(
                "bare fabric",
                sys.executable,
                [str(Path(__file__).with_name("bare_fabric.py")), str(lab.key), str(lab.known_hosts), *bare],
            ),
        ],
    )
