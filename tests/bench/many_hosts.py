"""What a thousand hosts cost the head: CPU to resolve them through the blocks that setup-ssh writes, and for `exec`.

    python -m tests.bench.many_hosts [N]

The hosts are addresses 127.1.x.y of this machine, all answered by one sshd of its own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fleet.model import Host
from fleet.ops.setup_ssh.config_block import ConfigEntry, render
from fleet.transport.ssh.transport import SshTransport
from tests.bench.fleet_lab import FLEET
from tests.lab.private_sshd import Head, Sshd


def write_config(head: Head, addresses: dict[str, str], port: int) -> None:
    """~/.ssh/config as setup-ssh leaves it."""
    key, known = str(head.ssh / "id_ed25519"), str(head.known_hosts)
    entries = [ConfigEntry(name, address, port, "root", None, key) for name, address in addresses.items()]
    (head.ssh / "config").write_bytes(render("bench", entries, known))


def resolving(head: Head, addresses: dict[str, str]) -> float:
    """Seconds of CPU."""
    transport = SshTransport(home=head.home)
    begin = time.process_time()
    for name, address in addresses.items():
        transport.resolve(Host(name, address))
    return time.process_time() - begin


def executing(head: Head, hosts: Path) -> str:
    """Of `fleet exec -- true`: its exit code, seconds, seconds of CPU."""
    env = {**os.environ, "HOME": str(head.home), "SSH_AUTH_SOCK": ""}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([FLEET, "-i", hosts, "-q", "exec", "--", "true"], env=env)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begin
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"exit code {done.returncode}, {wall:.1f} s, of it {cpu:.2f} s of the head's CPU"


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        sshd = Sshd(Path(folder) / "sshd", addresses=("0.0.0.0",), settings=["MaxStartups 1000"])
        try:
            head = Head(Path(folder) / "home")
            sshd.allow(head.public)
            for n in (most // 16, most // 4, most):
                addresses = {f"gpu{i:04}": f"127.1.{i // 250}.{i % 250 + 1}" for i in range(n)}
                write_config(head, addresses, sshd.port)
                print(f"resolve {n} hosts: {resolving(head, addresses):.3f} s of CPU", flush=True)
            lines = [f"[{address}]:{sshd.port} {sshd.public_key()}\n" for address in addresses.values()]
            head.known_hosts.write_text("".join(lines))
            hosts = Path(folder) / "hosts"
            hosts.write_text("".join(f"{name} address={a}\n" for name, a in addresses.items()))
            print(f"exec on {most} hosts: {executing(head, hosts)}")
        finally:
            sshd.stop()


if __name__ == "__main__":
    main()
