"""What fails says why, with a hint, in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fleet import fanout
from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.program import Program
from tests.free_port import free_port
from tests.lab import transport_tools
from tests.lab.private_sshd import Head, Sshd, listener, make_key, running_agent
from tests.lab.transport_tools import WAIT, failure, over, stuck, transport

KINDS = ("ssh", "openssh", "pdsh")


def test_a_name_that_does_not_resolve(head: Head) -> None:
    error = failure(head, Host("gpu1", "no-such-host.invalid"))
    assert error.kind == "resolve"
    assert "no-such-host.invalid" in error.message


@over("ssh")
def test_a_resolver_that_hangs(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: release.wait(120) and [])
    assert failure(head, Host("gpu1", "slow.example"), 1.0).kind == "resolve"
    release.set()


def test_a_refused_port(head: Head) -> None:
    assert failure(head, Host("gpu1", "127.0.0.1", port=free_port())).kind == "refused"


def test_no_route(head: Head) -> None:
    # a multicast address is one that TCP cannot reach on any machine
    assert failure(head, Host("gpu1", "224.0.0.1")).kind == "unreachable"


def test_a_black_hole(head: Head) -> None:
    with socket.socket() as sock:
        # a listener whose backlog is full answers no SYN: a black hole that needs no second machine
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fill = [socket.socket() for _ in range(3)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(sock.getsockname())
        time.sleep(0.2)
        error = stuck(head, Host("gpu1", "127.0.0.1", port=sock.getsockname()[1]), "timeout")
        for one in fill:
            one.close()
    assert error.kind == "timeout"


def test_a_listener_that_says_nothing(head: Head) -> None:
    with listener() as port:
        error = stuck(head, Host("gpu1", "127.0.0.1", port=port), "banner")
    assert error.kind == "banner"
    assert "sends nothing" in error.message


def test_a_listener_that_is_no_sshd(head: Head) -> None:
    with listener(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n") or peer.close()) as port:
        error = failure(head, Host("gpu1", "127.0.0.1", port=port))
    assert error.kind == "banner"
    assert "HTTP/1.1 400" in error.message


def test_a_listener_that_closes_at_once(head: Head) -> None:
    count: list[int] = []
    with listener(lambda peer: count.append(1) or peer.close()) as port:
        error = failure(head, Host("gpu1", "127.0.0.1", port=port))
    assert error.kind == "banner"
    assert 1 < len(count) <= 6


def test_a_peer_that_stops_in_the_key_exchange(head: Head) -> None:
    with listener(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        error = stuck(head, Host("gpu1", "127.0.0.1", port=port), "timeout", "key exchange")
    assert error.kind == "timeout"
    assert "key exchange" in error.message


def test_garbage_instead_of_a_key_exchange(head: Head) -> None:
    def serve(peer: socket.socket) -> None:
        peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + os.urandom(5000))

    with listener(serve) as port:
        for times in (1, 4, 16):  # a busy machine may not come as far as that
            error = failure(head, Host("gpu1", "127.0.0.1", port=port), times * WAIT)
            if error.kind != "banner":
                break
    assert error.kind in ("protocol", "lost", "timeout"), error


def test_a_frozen_sshd(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s")
    try:
        head.trusted_by(server)
        server.freeze()
        assert stuck(head, server.host(), "banner").kind == "banner"
        server.heal()
        transport(head).connect(server.host(), Cancel()).close()
    finally:
        server.stop()


def test_a_wrong_key(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s")
    try:
        head.knows(server)
        make_key(tmp_path / "other")
        error = failure(head, server.host(identity_file=str(tmp_path / "other")))
        assert error.kind == "auth"
        assert "publickey (other)" in error.message
        assert "the host allows" in error.message
        # one connection, one key: no default key was offered beside the named one
        assert server.log().count("Failed publickey") == 1
    finally:
        server.stop()


@over("ssh")
def test_no_key_and_unusable_keys_are_named(tmp_path: Path, head: Head, sshd: Sshd) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    assert "passphrase" in failure(head, sshd.host(identity_file=str(locked))).message
    error = failure(head, sshd.host(identity_file=str(tmp_path / "none")))
    assert "no such file" in error.message
    assert "there is no key to offer" in error.message
    (tmp_path / "junk").write_text("junk")
    assert "not a private key" in failure(head, sshd.host(identity_file=str(tmp_path / "junk"))).message


def test_an_agent_signs_for_a_locked_key(
    tmp_path: Path, head: Head, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = head.ssh / "id_ed25519"
    sock = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
    with running_agent(sock):
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)
        made = transport(head)
        for _, got in fanout.run(range(8), lambda _: made.connect(sshd.host(), Cancel()), cancel=Cancel()):
            assert not isinstance(got, Exception)
            got.close()
        made.close()


@over("ssh")
def test_no_open_file_left_names_the_limit(head: Head, sshd: Sshd) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from fleet.errors import LimitError\n"
        "from fleet.model import Host\n"
        "from fleet.transport.base import Cancel, ConnectOptions\n"
        "from fleet.transport.ssh.transport import SshTransport\n"
        "made = SshTransport(ConnectOptions(120), home=Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "kept = []\n"
        "try:\n"
        "    for _ in range(30):\n"
        "        kept.append(made.connect(Host('n', '127.0.0.1', port=int(sys.argv[2])), Cancel()))\n"
        "except LimitError as error:\n"
        "    print(error.message, '|', error.hint, '|', len(kept))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(head.home), str(sshd.port)], capture_output=True, text=True, timeout=300
    )
    assert "no open file left" in done.stdout, done
    assert "ulimit -n" in done.stdout


@over("ssh", "openssh")
def test_an_sshd_that_offers_only_what_fleets_own_ssh_lacks(tmp_path: Path) -> None:
    """ssh speaks it: that is the way out, and no sshd is called old for it."""
    modern = Sshd(tmp_path / "modern", settings=["Ciphers chacha20-poly1305@openssh.com"])
    head = Head(tmp_path / "home")
    head.trusted_by(modern)
    try:
        if transport_tools.KIND == ["openssh"]:
            transport(head).connect(modern.host(), Cancel()).close()
        else:
            error = failure(head, modern.host())
            assert error.kind == "protocol" and "--transport openssh" in (error.hint or "")
            assert "old" not in str(error) + str(error.hint)
    finally:
        modern.stop()


@over("ssh")
def test_a_login_that_hangs_is_not_a_link_that_is_cut(tmp_path: Path) -> None:
    """As one does whose home lies on a file server that hangs; an sshd that is frozen, too, is silent."""
    sshd = Sshd(tmp_path / "sshd", settings=[f"ForceCommand echo $$ >>{tmp_path}/logins; exec sleep 600"])
    head = Head(tmp_path / "home")
    head.trusted_by(sshd)
    try:
        for frozen in (False, True):
            session = transport(head).connect(sshd.host(), Cancel())
            with Program(session, "preflight.probe", {"deadline": 1.0}) as program:
                for pid in sshd.children() * frozen:
                    os.kill(pid, signal.SIGSTOP)
                with pytest.raises(ConnectError) as failed:
                    list(program.frames(silence=2.0))
            for pid in sshd.children():
                os.kill(pid, signal.SIGCONT)
            assert failed.value.kind == "lost"
            assert ("its home hang" in (failed.value.hint or "")) is not frozen, failed.value.hint
            session.close()
    finally:
        sshd.stop()
        for pid in (tmp_path / "logins").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
