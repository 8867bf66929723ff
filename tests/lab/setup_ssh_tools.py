"""What the lab tests of setup-ssh share: a head and hosts as if fleet had never been there, and ways to look."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.lab.virtual_lab import FLEET, VirtualLab

STAT = "cd /root && find .ssh -exec stat -c '%n %Y.%y %a %s' {} + 2>/dev/null; cat .ssh/* 2>/dev/null | sha256sum"


@dataclass
class Head:
    """A head with an empty home of its own, on somebody's lab."""

    lab: VirtualLab
    home: Path
    inventory: Path

    def first(self, count: int) -> Head:
        """Returns this head with only its first hosts: what a pair costs is paid for their square."""
        head = Head(self.lab.first(count), self.home, self.inventory)
        head.write_inventory({name: {} for name in head.lab.names})
        return head

    @property
    def ssh(self) -> Path:
        return self.home / ".ssh"

    def fleet(self, *args: str, timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
        env = {"HOME": str(self.home), **options.pop("env", {})}
        # a session of its own: no terminal to ask on, whoever runs the tests
        return subprocess.run(
            [FLEET, "-i", str(self.inventory), *args],
            env={**self.lab.env, **env},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            start_new_session=True,
            **options,
        )

    def setup(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.fleet("setup-ssh", "--password-file", str(self.lab.password_file), *args, **options)

    def report(self, *args: str, code: int = 0) -> dict[str, Any]:
        """`setup-ssh --json ARGS`, which has to exit with `code`."""
        done = self.setup("--json", *args)
        assert done.returncode == code, done.stdout + done.stderr
        document = json.loads(done.stdout)
        assert document["exit_code"] == code and document["ok"] == (code == 0)
        assert isinstance(document, dict)
        return document

    def write_inventory(self, hosts: dict[str, dict[str, Any]], **defaults: Any) -> None:
        """An inventory of these hosts of the lab, with these fields."""
        full = {name: {"address": self.lab.address(name), **fields} for name, fields in hosts.items()}
        self.inventory.write_text(
            yaml.safe_dump({"defaults": {"user": "root", **defaults}, "hosts": full}, sort_keys=False)
        )

    def plain_ssh(self, host: str, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ssh", "-F", str(self.ssh / "config"), "-o", "BatchMode=yes", host, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def snapshot(self) -> dict[str, Any]:
        """Every file under ~/.ssh and ~/.fleet, but for the record of failures: bytes, mode, time of change."""
        found: dict[str, Any] = {}
        failed = self.home / ".fleet/failed"
        for top in (self.ssh, self.home / ".fleet"):
            for path in sorted([top, *top.rglob("*")]) if top.exists() else []:
                data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                if path != failed.parent and not path.is_relative_to(failed):
                    found[str(path)] = (path.stat().st_mtime_ns, path.stat().st_mode, data)
        return found

    def everything(self) -> dict[str, Any]:
        """The head's snapshot and each host's."""
        return {"head": self.snapshot(), **{name: self.lab.sh(name, STAT) for name in self.lab.names}}


def forget_all(lab: VirtualLab) -> None:
    """The hosts as they came up: no ~/.ssh, an empty sshd log, one ed25519 host key, sshd on port 22 only."""
    for name in lab.names:
        lab.sh(name, "rm -rf /root/.ssh; : > /var/log/sshd.log")


def logged(lab: VirtualLab, host: str, text: str) -> int:
    """How many lines of the host's sshd log hold the text."""
    return int(lab.sh(host, f"grep -c '{text}' /var/log/sshd.log || true"))


def fingerprint(lab: VirtualLab, host: str) -> str:
    return lab.sh(host, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]


def on_terminal(
    argv: Sequence[str], env: dict[str, str], cwd: Path, dialogue: Sequence[tuple[str, str]], timeout: float = 300
) -> tuple[int, str]:
    """Run argv on a terminal of its own; for each (text to wait for, answer) type the answer. (status, screen)."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), env)
    screen = b""
    seen = 0
    waiting = list(dialogue)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            screen += data
        if waiting and waiting[0][0].encode() in screen[seen:]:
            seen = len(screen)
            os.write(fd, waiting.pop(0)[1].encode() + b"\n")
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert not waiting, screen.decode(errors="replace")
    return os.waitstatus_to_exitcode(status), screen.decode(errors="replace")
