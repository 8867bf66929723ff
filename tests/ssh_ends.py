"""Where SSH goes by an ssh config in a home folder of a test's own, and which host keys are right there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fleet.model import Host
from fleet.ops.setup_ssh.config_block import ConfigEntry, render
from fleet.transport.base import Cancel
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.endpoint import Endpoint, resolve
from fleet.transport.ssh.hostkeys import HostKeyCheck
from fleet.transport.ssh.known_hosts import KnownHosts
from fleet.transport.ssh.transport import SshTransport


def endpoint(home: Path, host: Host, text: str = "") -> Endpoint:
    """Returns where the transport goes, by a user's config of that text."""
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/config").write_text(text)
    made = SshTransport(home=home)
    made.config = SshConfig(home, (home / ".ssh/config",))
    return made.resolve(host)


def reader(home: Path, *files: Path) -> Callable[..., Endpoint]:
    """Returns what reads these files once, for all its hosts; where none is named, those that fleet reads."""
    config = SshConfig(home, files) if files else SshConfig(home)

    def read(host: Host, cancel: Cancel | None = None) -> Endpoint:
        return resolve(host, config, cancel)

    return read


def setup_block(names: Sequence[str], known_hosts: Path) -> bytes:
    """Returns the block that setup-ssh puts into a config."""
    entries = [ConfigEntry(name, f"ip-{name}", 22, "root", None, "/k/id") for name in names]
    return render("lab", entries, str(known_hosts))


def spied_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """Puts an ssh before the others that notes its arguments; returns what reads these."""
    log, ssh = folder / "asked", folder / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\n(IFS="|"; printf "%s\\n" "$*") >> {log}\nexec {shutil.which("ssh")} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")
    return lambda: [line.split("|") for line in log.read_text().splitlines()] if log.exists() else []


def key_check(
    host: Host, known_hosts: Path, known: KnownHosts | None = None, revoked: Path | None = None
) -> HostKeyCheck:
    """Returns the judge of a host's keys, by that file."""
    end = Endpoint(host.address, host.port or 22, "me", (), (), (known_hosts,), revoked=revoked)
    return HostKeyCheck(host, end, known or KnownHosts())


__all__ = ["Cancel", "KnownHosts", "endpoint", "key_check", "reader", "setup_block", "spied_ssh"]
