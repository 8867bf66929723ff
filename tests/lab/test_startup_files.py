"""What a login shell's startup files and forced commands do to fleet, on real hosts: it works, or it is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.virtual_lab import VirtualLab

pytestmark = pytest.mark.slow

RC = "/root/.bashrc"


@pytest.fixture
def rc(ready_lab: VirtualLab) -> Iterator[tuple[VirtualLab, str]]:
    """(the lab, a host): its ~/.bashrc comes back as it was."""
    host = ready_lab.names[1]
    ready_lab.sh(host, f"touch {RC}; cp {RC} /tmp/rc; cp /root/.ssh/authorized_keys /tmp/keys")
    yield ready_lab, host
    ready_lab.sh(host, f"cp /tmp/rc {RC}; cp /tmp/keys /root/.ssh/authorized_keys")


def begin_with(lab: VirtualLab, host: str, line: str) -> None:
    lab.inside(host, "sh", "-c", f"cat - /tmp/rc > {RC}", stdin=line.encode() + b"\n")


@pytest.mark.parametrize(
    "line",
    [
        "read x",
        *(
            pytest.param(line, marks=pytest.mark.slow)
            for line in ("cat >/dev/null", "read -n 3 x", "head -c 50 >/dev/null")
        ),
    ],
)
def test_a_startup_file_that_reads_stdin_is_named(rc: tuple[VirtualLab, str], line: str) -> None:
    lab, host = rc
    begin_with(lab, host, line)
    for args in (["exec", "--", "true"], ["setup-ssh"]):
        done = lab.fleet("-i", "lab", *args)
        assert done.returncode == 122, done.stdout + done.stderr
        said = " ".join(done.stderr.split())
        assert host in said and f"startup files read stdin, and with it the program that fleet sends: {RC}" in said
        assert f"""put '[ -n "$PS1" ] || return' at the top of {RC}""" in said
        assert "Traceback" not in said and "line 1" not in said
    begin_with(lab, host, f'[ -n "$PS1" ] || return\n{line}')  # what it tells to do
    assert lab.fleet("-i", "lab", "exec", "--", "true").returncode == 0


def test_one_that_prints_changes_nothing(rc: tuple[VirtualLab, str], tmp_path: Path) -> None:
    lab, host = rc
    begin_with(lab, host, "echo welcome; echo to this machine >&2; printf '%70s\\n' -")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "big").write_bytes(b"0123456789abcdef" * 300_000)  # large enough for blocks
    lab.fleet("-i", "lab", "sync", str(tmp_path / "src"), "--to", "/tmp/chatty", check=True)
    lab.fleet("-i", "lab", "sync", "--data", f"{tmp_path}/src:/tmp/chatty2", check=True)
    lab.fleet("-i", "lab", "sync", "--data", f"{tmp_path}/src/big:/tmp/chatty3", check=True)
    done = lab.fleet(
        "-i", "lab", "exec", "--", "cksum", "/tmp/chatty/big", "/tmp/chatty2/big", "/tmp/chatty3", check=True
    )
    assert done.stdout.count("4800000 /tmp") == 3 and "welcome" not in done.stdout
    lab.fleet("-i", "lab", "setup-ssh", check=True)


@pytest.mark.parametrize(
    "command", ["echo not today", *(pytest.param(line, marks=pytest.mark.slow) for line in ("cat", "yes", "true"))]
)
def test_a_forced_command_is_named(rc: tuple[VirtualLab, str], command: str) -> None:
    lab, host = rc
    lab.sh(host, f"""sed -i 's/^/command="{command}" /' /root/.ssh/authorized_keys""")
    for args in (["exec", "--", "true"], ["setup-ssh"]):
        done = lab.fleet("-i", "lab", *args, timeout=300)
        assert done.returncode == 122, done.stdout + done.stderr
        assert "command= in authorized_keys" in " ".join(done.stderr.split()) or command == "yes", done.stderr
        assert "the login shell did not start" in done.stderr or "something else answers" in done.stderr
    if command == "echo not today":
        assert "not today" in done.stderr
