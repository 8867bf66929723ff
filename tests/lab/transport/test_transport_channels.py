"""Sessions and channels over a real sshd."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fleet import fanout
from fleet.errors import ConnectError
from fleet.transport.base import Cancel, Session
from fleet.transport.command import Command, CommandSpec
from fleet.transport.shell import run_line
from tests.lab.private_sshd import Head, Sshd
from tests.lab.transport_tools import TIMEOUT, over, transport, wait_until

KINDS = ("ssh", "openssh", "pdsh", "local")


def test_status_and_streams(session: Session, kind: str) -> None:
    done = run_line(session, "cat; echo err >&2; exit 7", b"in")
    assert (done.status, done.stdout, done.stderr) == (7, b"in", b"err\n")
    # OpenSSH's client has one status for all that a signal ended; a shell that waits knows more
    assert run_line(session, "kill -9 $$").status == (255 if kind == "openssh" else 137)
    assert run_line(session, "sh -c 'kill -TERM $$'; exit $?").status == 143
    assert run_line(session, "exit 255").status == 255


def test_commands_run(session: Session) -> None:
    argv = ["printf", "%s", "it's 72\" $(id)\n*"]
    with Command(session, CommandSpec(argv, None, {}), "exec-lab", 0) as command:
        said = list(command.output(silence=120, timeout=120, patience=120))
    assert b"".join(data for _, data in said) == argv[2].encode() and command.status == 0
    with Command(
        session, CommandSpec(None, "head -c 9000000 /dev/zero >&2; head -c 9000000 /dev/zero", {}), "m", 0
    ) as command:
        sizes = [0, 0]
        for number, data in command.output(silence=120, timeout=120, patience=120):
            sizes[number] += len(data)
    assert sizes == [9000000, 9000000]


def test_every_byte_passes_both_ways(session: Session) -> None:
    every = bytes(range(256)) * 17
    assert run_line(session, "cat", every).stdout == every


def test_a_command_whose_shell_was_killed_is_told_of_as_killed(session: Session, kind: str) -> None:
    """Not as one that was ended because the head said so: sshd closes stdin then."""
    with Command(
        session, CommandSpec(None, "kill -KILL $PPID; exec sleep 4801", {}), f"killed-{os.getpid()}-{kind}", 0
    ) as command:
        assert list(command.output(silence=120, timeout=120, patience=120)) == []
    assert (command.status, command.left) == (255 if kind == "openssh" else 137, None)


def test_a_stderr_flood_never_blocks_stdout(session: Session) -> None:
    done = run_line(session, "head -c 40000000 /dev/zero >&2; echo tail >&2; echo out", timeout=300)
    assert done.stdout == b"out\n"
    assert len(done.stderr) == 64 * 1024
    assert done.stderr.endswith(b"tail\n")


def test_a_big_send_to_a_peer_that_writes_first(session: Session) -> None:
    blob = os.urandom(1 << 20) * 24
    done = run_line(session, "cat", blob, timeout=300)
    assert done.stdout == blob


@over("ssh")
def test_rekeying_in_the_middle_loses_nothing(session: Session) -> None:
    import fleet.transport.ssh.adapter as wire

    before = wire.Packets.REKEY_BYTES
    wire.Packets.REKEY_BYTES = 1 << 20
    try:
        blob = os.urandom(1 << 20) * 16
        line = "head -c 3000000 /dev/zero >&2; cat; head -c 3000000 /dev/zero >&2"
        assert run_line(session, line, blob, timeout=300).stdout == blob
    finally:
        wire.Packets.REKEY_BYTES = before


def test_several_channels_at_once(session: Session) -> None:
    def one(number: int) -> bytes:
        return run_line(session, f"echo {number}; head -c 300000 /dev/zero").stdout

    for number, out in fanout.run(range(8), one, cancel=Cancel()):
        assert isinstance(out, bytes)
        assert out.startswith(b"%d\n" % number)
        assert len(out) == 300000 + len(b"%d\n" % number)


def test_recv_waits_no_longer_than_asked(session: Session) -> None:
    channel = session.start("sleep 40")
    begin = time.monotonic()
    assert channel.recv(0.3) is None
    assert time.monotonic() - begin > 0.25
    assert channel.wait(0.1) is None
    channel.close()


def test_closing_a_channel_closes_stdin(session: Session, tmp_path: Path) -> None:
    channel = session.start(f"cat; touch {tmp_path}/ended")
    channel.send(b"x")
    assert channel.recv(TIMEOUT) == b"x"
    channel.close()
    wait_until((tmp_path / "ended").exists)


def test_more_channels_than_sshd_allows_on_one_connection(session: Session) -> None:
    channels = [session.start(f"echo {number}; exec cat") for number in range(12)]
    assert [channel.recv(TIMEOUT) for channel in channels] == [b"%d\n" % number for number in range(12)]


@over("ssh")
def test_an_sshd_that_opens_no_session_is_named(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s", settings=["MaxSessions 0"])
    head.trusted_by(server)
    made = transport(head).connect(server.host(), Cancel())
    try:
        with pytest.raises(ConnectError) as caught:
            made.start("true")
    finally:
        made.close()
        server.stop()
    assert caught.value.hint is not None and "'MaxSessions 10'" in caught.value.hint


@over("ssh")
def test_a_place_that_is_free_in_a_moment_is_waited_for(tmp_path: Path, head: Head) -> None:
    """One session a connection, and no further connection is let in: as with a password that is sent once."""
    server = Sshd(tmp_path / "s", settings=["MaxSessions 1"])
    head.trusted_by(server)
    made = transport(head).connect(server.host(), Cancel())
    (server.folder / "authorized_keys").write_bytes(b"")
    try:
        ends = made.start("exec <&- >&- 2>&-; sleep 0.3")
        ends.close()  # sshd counts it until it has ended
        assert run_line(made, "echo hi").stdout == b"hi\n"
        held = made.start("exec cat")
        with pytest.raises(ConnectError, match="open failed; a further connection: not authenticated"):
            made.start("true")
        held.close()
    finally:
        made.close()
        server.stop()
