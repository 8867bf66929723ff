"""A real sshd reached through an ssh config that only ssh itself can read, by `fleet exec`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.private_sshd import Head, Sshd, make_key


@pytest.fixture()
def odd(tmp_path: Path, sshd: Sshd) -> Head:
    """A head whose key, known_hosts and port take a comment, quotes, a token and a Match to be found."""
    head = Head(tmp_path / "home")
    (head.ssh / "my keys").mkdir()
    make_key(head.ssh / "my keys/key of node")
    sshd.allow(head.ssh / "my keys/key of node.pub")
    (head.ssh / "known of root").write_text(f"[{sshd.addresses[0]}]:{sshd.port} {sshd.public_key()}\n")
    (head.ssh / "config").write_text(
        f'Match exec "test %n = node"\n HostName {sshd.addresses[0]} # here\n Port {sshd.port} # and here\n'
        ' IdentityFile "~/.ssh/my keys/key of %n"\n UserKnownHostsFile "~/.ssh/known of %r"\n IdentitiesOnly true\n'
        "Host walled\n ProxyCommand nc %h %p\n"
    )
    return head


def fleet(head: Head, tmp_path: Path, host: str) -> tuple[int, dict[str, Any]]:
    (tmp_path / "hosts").write_text(f"{host} user=root\n")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from fleet.cli.main import main; main()",
            "-i",
            tmp_path / "hosts",
            "--json",
            "exec",
            "--",
            "echo",
            "here",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={"HOME": str(head.home), "PATH": "/usr/bin:/bin"},
    )
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["hosts"][host]
    return done.returncode, found


def test_what_only_ssh_can_read(odd: Head, tmp_path: Path) -> None:
    code, found = fleet(odd, tmp_path, "node")
    assert (code, found["stdout"]) == (0, "here\n"), found


def test_a_proxy_command_is_told_with_its_line(odd: Head, tmp_path: Path) -> None:
    code, found = fleet(odd, tmp_path, "walled")
    assert code == 122
    assert found["error"]["kind"] == "config"
    assert f"{odd.ssh}/config:8" in json.dumps(found["error"])


def test_a_file_that_ssh_refuses_is_refused_with_its_line(odd: Head, tmp_path: Path) -> None:
    with (odd.ssh / "config").open("a") as config:
        config.write("Host nobody\n Port many\n")
    code, found = fleet(odd, tmp_path, "node")
    assert code == 122
    assert f"{odd.ssh}/config:10" in json.dumps(found["error"])
