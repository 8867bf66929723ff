"""A lab for a benchmark, with keys in place and the configuration each peer wants, gone at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
FLEET = str(BIN / "fleet")


@dataclass(frozen=True)
class BenchLab:
    """env: what to run everything with. addresses: {host name: address}, in node-rank order."""

    home: Path
    env: dict[str, str]
    addresses: dict[str, str]

    @property
    def names(self) -> list[str]:
        return list(self.addresses)

    @property
    def ssh_config(self) -> Path:
        return self.home / "peers_ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh/known_hosts"

    @property
    def key(self) -> Path:
        return next(p for p in sorted((self.home / ".ssh").glob("id_*")) if p.suffix != ".pub")

    def fleet(self, *argv: str) -> str:
        """Run fleet on this lab; its stdout. Ends the benchmark when it fails."""
        done = subprocess.run(
            [FLEET, "-i", "lab", *argv],
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"fleet {' '.join(argv)} ended in {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def write_ssh_config(self) -> None:
        """For OpenSSH and pyinfra: the same key and the same strict host keys as fleet uses.

        ssh itself takes the home folder of /etc/passwd, not $HOME, hence a file for `ssh -F`.
        """
        hosts = "".join(f"Host {name}\n  HostName {address}\n" for name, address in self.addresses.items())
        self.ssh_config.write_text(
            f"{hosts}Host *\n  User root\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n  BatchMode yes\n"
            f"  StrictHostKeyChecking yes\n  UserKnownHostsFile {self.known_hosts}\n"
        )


@contextmanager
def bench_lab(count: int, *options: str, mesh: bool = False) -> Iterator[BenchLab]:
    """`count` hosts, authorized by setup-ssh; HOME is a folder of its own. options: of `lab up`."""
    home = Path(tempfile.mkdtemp(prefix="fleet-bench."))
    env = {
        **os.environ,
        "HOME": str(home),
        "FLEET_LAB": os.environ.get("FLEET_LAB", "bench"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    env.pop("SSH_AUTH_SOCK", None)
    try:
        argv = [FLEET, "lab", "up", str(count), *options, "--json"]
        up = subprocess.run(argv, env=env, capture_output=True, text=True)
        if up.returncode:
            sys.exit(up.stdout + up.stderr)
        document = json.loads(up.stdout)
        for host in document["hosts"].values():  # an sshd as Debian has it: peers meet its key exchange, too
            stock = "sed -i /^KexAlgorithms/d /etc/ssh/sshd_config && kill -HUP $(cat /run/sshd.pid)"
            subprocess.run(["nsenter", "-t", str(host["pid"]), "-a", "sh", "-c", stock], check=True)
        lab = BenchLab(home, env, {name: host["address"] for name, host in document["hosts"].items()})
        pairs = "--mesh" if mesh else "--no-mesh"
        lab.fleet("setup-ssh", "--tofu", pairs, "--password-file", document["password_file"])
        lab.write_ssh_config()
        yield lab
    finally:
        subprocess.run([FLEET, "lab", "down"], env=env, stdout=subprocess.DEVNULL)
        shutil.rmtree(home, ignore_errors=True)
