"""What pdsh does to what passes through it, and what the user tells pdsh."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from pathlib import Path

import pytest

from fleet.errors import ConnectError, UsageError
from fleet.model import Host
from fleet.transport import open_transport
from fleet.transport.base import Cancel, ConnectOptions, Session
from fleet.transport.program import Program
from fleet.transport.shell import run_line
from tests.lab.private_sshd import Head, Sshd, make_key
from tests.lab.transport_tools import TIMEOUT, failure, transport

KINDS = ("pdsh",)


def test_nothing_waits_for_a_line_to_end(session: Session) -> None:
    channel = session.start("printf 'half\\r\\000\\377'; sleep 40")
    assert channel.recv(TIMEOUT) == b"half\r\0\377"
    channel.close()


def test_what_pdsh_is_told_holds(tmp_path: Path, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sshd(tmp_path / "s", settings=["AcceptEnv FLEET_*"])
    make_key(tmp_path / "other")
    try:
        head.knows(server)
        server.allow(tmp_path / "other.pub")
        monkeypatch.setenv(
            "PDSH_SSH_ARGS", f"-i {tmp_path}/other -p {server.port} -oUser=root -o SendEnv=FLEET_SEEN %h"
        )
        monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-o SetEnv=FLEET_HOST=%h -f -S /nowhere -o StrictHostKeyChecking=no")
        monkeypatch.setenv("FLEET_SEEN", "yes")
        for name, value in {"DSHPATH": "/nowhere", "WCOLL": "/nowhere", "PDSH_RCMD_TYPE": "rsh"}.items():
            monkeypatch.setenv(name, value)
        session = transport(head).connect(Host("node", "127.0.0.1"), Cancel())
        with contextlib.closing(session):
            assert run_line(session, "echo $FLEET_SEEN $FLEET_HOST").stdout == b"yes node\n"
        assert server.log().count("Accepted publickey") == 1
        # the inventory is over it, and no host key is taken unseen
        assert failure(head, Host("node", "127.0.0.1", port=1)).kind == "refused"
        head.known_hosts.write_text("")
        assert failure(head, Host("node", "127.0.0.1")).kind == "unknown-host-key"
        monkeypatch.setenv("PDSH_SSH_ARGS", "-F /nowhere -i /nowhere")
        assert "config file /nowhere: No such file" in failure(head, server.host()).message
        monkeypatch.setenv("PDSH_SSH_ARGS", "-o 'SendEnv A' -9")
        with pytest.raises(UsageError, match="PDSH_SSH_ARGS: option -9"):
            transport(head)
    finally:
        server.stop()


@pytest.mark.parametrize("shell", ["tcsh -f", "fish -N", "zsh -f", "busybox sh"])
def test_every_login_shell(tmp_path: Path, head: Head, shell: str) -> None:
    forced = tmp_path / "forced"
    forced.write_text(f'#!/bin/sh\necho noise; echo noise >&2; exec {shell} -c "$SSH_ORIGINAL_COMMAND"\n')
    forced.chmod(0o755)
    server = Sshd(tmp_path / "s", settings=[f"ForceCommand {forced}"])
    home = pwd.getpwuid(os.getuid()).pw_dir  # sshd's word, whatever HOME is here
    try:
        head.trusted_by(server)
        session = transport(head).connect(server.host(python="/it's %h/python"), Cancel())
        with contextlib.closing(session):
            done = run_line(session, "exec sh -c 'echo \"%h %u %n %% %s $HOME\"; echo err >&2; exit 3'")
        assert (done.status, done.stdout) == (3, f"noise\n%h %u %n %% %s {home}\n".encode())
        assert done.stderr == b"noise\nerr\n"  # nothing of pdsh's own
    finally:
        server.stop()


def test_a_host_without_python_and_one_that_runs_something_else(tmp_path: Path, head: Head) -> None:
    forced = tmp_path / "forced"
    hide = (
        "mount -t tmpfs none /mnt; mkdir /mnt/u /mnt/w; mount -t overlay -o lowerdir=/usr/bin,upperdir=/mnt/u,"
        "workdir=/mnt/w none /usr/bin; rm /usr/bin/python3; PATH=/usr/bin:/bin"
    )
    forced.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{hide}; eval \"$SSH_ORIGINAL_COMMAND\"'\n")
    forced.chmod(0o755)
    server = Sshd(tmp_path / "s", settings=[f"ForceCommand {forced}"])
    try:
        head.trusted_by(server)
        session = transport(head).connect(server.host(), Cancel())
        assert run_line(session, "echo all is well").stdout == b"all is well\n"
        with Program(session, "run.stop", {}) as program, pytest.raises(ConnectError) as caught:
            list(program.frames())
        assert caught.value.kind == "no-python"
        forced.write_text("#!/bin/sh\necho no shell for you\n")
        with Program(session, "run.stop", {}) as program, pytest.raises(ConnectError, match="no shell for you"):
            list(program.frames())
        session.close()
    finally:
        server.stop()


def test_no_pdsh_or_one_that_knows_no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        open_transport("pdsh", ConnectOptions(), ())
    assert "apt install pdsh" in str(caught.value.hint)
    (tmp_path / "pdsh").write_text("#!/bin/sh\necho 'rcmd modules: rsh,exec (default: rsh)'\n")
    os.chmod(tmp_path / "pdsh", 0o755)
    with pytest.raises(UsageError, match="cannot use ssh: it knows rsh,exec") as caught:
        open_transport("pdsh", ConnectOptions(), ())
    assert "pdsh-rcmd-ssh" in str(caught.value.hint)
    assert shutil.which("ssh") is None
