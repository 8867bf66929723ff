"""The ssh transport against real sshd and against peers that misbehave."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from private_sshd import Head, Sshd, free_port, listener, make_key

from fleet import fanout
from fleet.errors import ConnectError, FleetError, Interrupted
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.program import call, run_line
from fleet.transport.ssh import SshTransport
from fleet.transport.ssh_channel import SshSession

# generous where a real sshd has to answer on a busy machine, short where it is waited out
TIMEOUT = 10.0
WAIT = 1.5


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd") / "a", key_types=("ed25519", "rsa", "ecdsa"))
    yield server
    server.stop()


@pytest.fixture()
def head(tmp_path: Path, sshd: Sshd) -> Head:
    made = Head(tmp_path / "home")
    made.trusted_by(sshd)
    return made


def transport(head: Head, timeout: float = TIMEOUT, **more: object) -> SshTransport:
    return SshTransport(ConnectOptions(timeout), home=head.home, **more)  # type: ignore[arg-type]


@pytest.fixture()
def session(head: Head, sshd: Sshd) -> Iterator[SshSession]:
    made = transport(head, 10).connect(sshd.host(), Cancel())
    yield made
    made.close()


def failure(head: Head, host: Host, timeout: float = TIMEOUT, **more: object) -> ConnectError:
    """The error of connecting, which must name the host, have a hint and come in time."""
    begin = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        transport(head, timeout, **more).connect(host, Cancel())
    assert time.monotonic() - begin < timeout + 1
    error = caught.value
    assert error.host == host.name
    assert error.hint
    assert error.exit_code == 122
    return error


# -- what works ------------------------------------------------------------------------------------------


def test_status_and_streams(session: SshSession) -> None:
    done = run_line(session, "cat; echo err >&2; exit 7", b"in")
    assert (done.status, done.stdout, done.stderr) == (7, b"in", b"err\n")
    assert run_line(session, "kill -9 $$").status == 137
    assert run_line(session, "kill -TERM $$").status == 143


def test_programs_run(session: SshSession) -> None:
    argv = ["printf", "%s", "it's 72\" $(id)\n*"]
    assert call(session, "execute", {"argv": argv, "env": {}, "mark": "m"}, timeout=20) == {}


def test_a_stderr_flood_never_blocks_stdout(session: SshSession) -> None:
    done = run_line(session, "head -c 40000000 /dev/zero >&2; echo tail >&2; echo out", timeout=60)
    assert done.stdout == b"out\n"
    assert len(done.stderr) == 64 * 1024
    assert done.stderr.endswith(b"tail\n")


def test_a_big_send_to_a_peer_that_writes_first(session: SshSession) -> None:
    blob = os.urandom(1 << 20) * 24
    done = run_line(session, "cat", blob, timeout=60)
    assert done.stdout == blob


def test_rekeying_in_the_middle_loses_nothing(session: SshSession) -> None:
    import fleet.transport.ssh_wire as wire

    before = wire.Packets.REKEY_BYTES
    wire.Packets.REKEY_BYTES = 1 << 20
    try:
        blob = os.urandom(1 << 20) * 16
        line = "head -c 3000000 /dev/zero >&2; cat; head -c 3000000 /dev/zero >&2"
        assert run_line(session, line, blob, timeout=60).stdout == blob
    finally:
        wire.Packets.REKEY_BYTES = before


def test_several_channels_at_once(session: SshSession) -> None:
    def one(number: int) -> bytes:
        return run_line(session, f"echo {number}; head -c 300000 /dev/zero").stdout

    for number, out in fanout.run(range(8), one, cancel=Cancel()):
        assert isinstance(out, bytes)
        assert out.startswith(b"%d\n" % number)
        assert len(out) == 300000 + len(b"%d\n" % number)


def test_recv_waits_no_longer_than_asked(session: SshSession) -> None:
    channel = session.start("sleep 30")
    begin = time.monotonic()
    assert channel.recv(0.3) is None
    assert 0.25 < time.monotonic() - begin < 2
    assert channel.wait(0.1) is None
    channel.close()


def test_closing_a_channel_closes_stdin(session: SshSession, tmp_path: Path) -> None:
    channel = session.start(f"cat; touch {tmp_path}/ended")
    channel.send(b"x")
    assert channel.recv(5) == b"x"
    channel.close()
    wait_until((tmp_path / "ended").exists)


def test_too_many_sessions_is_said(session: SshSession) -> None:
    with pytest.raises(ConnectError) as caught:
        for _ in range(11):
            session.start("sleep 20")
    assert caught.value.hint is not None
    assert "MaxSessions" in caught.value.hint


# -- host keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_the_key_type_on_file_is_asked_for(tmp_path: Path, sshd: Sshd, kind: str) -> None:
    head = Head(tmp_path / "h")
    head.knows(sshd, kind)
    sshd.allow(head.public)
    transport(head, 10).connect(sshd.host(), Cancel()).close()


def test_hashed_known_hosts(head: Head, sshd: Sshd) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", str(head.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in head.known_hosts.read_text()
    transport(head, 10).connect(sshd.host(), Cancel()).close()


def test_a_swapped_host_key_is_refused_and_nothing_is_sent(tmp_path: Path, head: Head) -> None:
    old = Sshd(tmp_path / "old")
    head.trusted_by(old)
    transport(head, 10).connect(old.host(), Cancel()).close()
    old.stop()
    new = Sshd(tmp_path / "new", port=old.port)
    try:
        new.allow(head.public)
        asked: list[str] = []
        error = failure(head, new.host("gpu7"), password_for=lambda h: asked.append(h.name) or "secret",
                        accept_unknown=lambda h, k: True)
        assert error.kind == "host-key"
        for server in (old, new):
            said = subprocess.run(["ssh-keygen", "-lf", str(server.folder / "host_ed25519.pub")],
                                  capture_output=True, text=True, check=True)
            assert said.stdout.split()[1] in error.message
        assert error.hint is not None
        assert "fleet setup-ssh --replace-key gpu7" in error.hint
        log = new.log()
        assert "Connection from" in log
        for trace in ("user root", "root", "Accepted", "Failed", "publickey", "password"):
            assert trace not in log.replace(str(new.folder), "")
    finally:
        new.stop()


def test_unknown_key_and_enrolment(tmp_path: Path, sshd: Sshd) -> None:
    head = Head(tmp_path / "h")
    sshd.allow(head.public)
    error = failure(head, sshd.host())
    assert error.kind == "unknown-host-key"
    assert error.hint is not None
    assert "setup-ssh" in error.hint
    made = transport(head, 10)
    for kind in ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256"):
        key = made.host_key(sshd.host(), Cancel(), kind)
        assert key.type == kind
        assert key.text == sshd.public_key({"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(kind, "ecdsa"))
        assert key.fingerprint.startswith("SHA256:")
    # enrolled while the same transport lives
    head.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {made.host_key(sshd.host(), Cancel()).text}\n")
    made.connect(sshd.host(), Cancel()).close()


def test_accept_unknown_is_asked_with_the_key(tmp_path: Path, sshd: Sshd) -> None:
    head = Head(tmp_path / "h")
    sshd.allow(head.public)
    seen: list[str] = []
    made = transport(head, 10, accept_unknown=lambda host, key: bool(seen.append(f"{host.name} {key.text}")) or True)
    made.connect(sshd.host(), Cancel()).close()
    assert seen == [f"node {sshd.public_key()}"]
    assert failure(head, sshd.host(), accept_unknown=lambda host, key: False).kind == "unknown-host-key"


def test_a_pin_is_enough_and_finds_its_key_type(tmp_path: Path, sshd: Sshd) -> None:
    head = Head(tmp_path / "h")
    sshd.allow(head.public)
    made = transport(head, 10)
    pins = {k: made.host_key(sshd.host(), Cancel(), k).fingerprint for k in ("ssh-ed25519", "ssh-rsa")}
    for pin in pins.values():
        made.connect(sshd.host(host_key=pin), Cancel()).close()
    wrong = "SHA256:" + "A" * 43
    error = failure(head, sshd.host(host_key=wrong))
    assert error.kind == "host-key"
    assert wrong in error.message
    assert pins["ssh-ed25519"] in error.message


# -- what fails, each with its reason, in time -----------------------------------------------------------


def test_a_name_that_does_not_resolve(head: Head) -> None:
    error = failure(head, Host("gpu1", "no-such-host.invalid"))
    assert error.kind == "resolve"
    assert "no-such-host.invalid" in error.message


def test_a_resolver_that_hangs(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: release.wait(20) and [])
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
        error = failure(head, Host("gpu1", "127.0.0.1", port=sock.getsockname()[1]), WAIT)
        for one in fill:
            one.close()
    assert error.kind == "timeout"


def test_a_listener_that_says_nothing(head: Head) -> None:
    with listener() as port:
        error = failure(head, Host("gpu1", "127.0.0.1", port=port), WAIT)
    assert error.kind == "banner"
    assert "says nothing" in error.message


def test_a_listener_that_is_no_sshd(head: Head) -> None:
    with listener(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n") or peer.close()) as port:
        error = failure(head, Host("gpu1", "127.0.0.1", port=port))
    assert error.kind == "banner"
    assert "HTTP/1.1 400" in error.message


def test_a_listener_that_closes_at_once(head: Head) -> None:
    count: list[int] = []
    with listener(lambda peer: count.append(1) or peer.close()) as port:
        error = failure(head, Host("gpu1", "127.0.0.1", port=port), 5.0)
    assert error.kind == "banner"
    assert 1 < len(count) <= 6


def test_a_peer_that_stops_in_the_key_exchange(head: Head) -> None:
    with listener(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        error = failure(head, Host("gpu1", "127.0.0.1", port=port), WAIT)
    assert error.kind == "timeout"
    assert "key exchange" in error.message


def test_garbage_instead_of_a_key_exchange(head: Head) -> None:
    def serve(peer: socket.socket) -> None:
        peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + os.urandom(5000))

    with listener(serve) as port:
        assert failure(head, Host("gpu1", "127.0.0.1", port=port), WAIT).kind in ("protocol", "lost", "timeout")


def test_a_frozen_sshd(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s")
    try:
        head.trusted_by(server)
        server.freeze()
        assert failure(head, server.host(), WAIT).kind == "banner"
        server.heal()
        transport(head, 10).connect(server.host(), Cancel()).close()
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
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        wait_until(sock.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)
        made = transport(head, 10)
        for _, got in fanout.run(range(8), lambda _: made.connect(sshd.host(), Cancel()), cancel=Cancel()):
            assert isinstance(got, SshSession)
            got.close()
        made.close()
    finally:
        agent.kill()
        agent.wait()


def test_no_open_file_left_names_the_limit(head: Head, sshd: Sshd) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from fleet.errors import LimitError\n"
        "from fleet.model import Host\n"
        "from fleet.transport.base import Cancel\n"
        "from fleet.transport.ssh import SshTransport\n"
        "made = SshTransport(home=Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "kept = []\n"
        "try:\n"
        "    for _ in range(30):\n"
        "        kept.append(made.connect(Host('n', '127.0.0.1', port=int(sys.argv[2])), Cancel()))\n"
        "except LimitError as error:\n"
        "    print(error.message, '|', error.hint, '|', len(kept))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(head.home), str(sshd.port)],
                          capture_output=True, text=True, timeout=60)
    assert "no open file left" in done.stdout, done
    assert "ulimit -n" in done.stdout


# -- losing a connection, ending -------------------------------------------------------------------------


def test_a_killed_connection_is_lost_not_ended(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s")
    try:
        head.trusted_by(server)
        session = transport(head, 10).connect(server.host(), Cancel())
        channel = session.start("sleep 60")
        for pid in server.children():
            os.kill(pid, 9)
        with pytest.raises(ConnectError) as caught:
            while channel.recv(5) is None:
                pass
        assert caught.value.kind == "lost"
        with pytest.raises(ConnectError):
            channel.send(b"x")
        with pytest.raises(ConnectError):
            session.start("true")
        session.close()
    finally:
        server.stop()


def test_close_does_not_wait_for_a_frozen_peer(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s")
    try:
        head.trusted_by(server)
        session = transport(head, 1).connect(server.host(), Cancel())
        channel = session.start("cat >/dev/null")
        for pid in server.children():
            os.kill(pid, 19)
        sender = threading.Thread(target=swallow, args=(lambda: channel.send(bytes(64 << 20)),), daemon=True)
        sender.start()
        time.sleep(0.5)
        begin = time.monotonic()
        with pytest.raises(ConnectError) as caught:
            session.start("true")
        assert caught.value.kind == "timeout"
        channel.close()
        session.close()
        assert time.monotonic() - begin < 3
        sender.join(5)
        assert not sender.is_alive()
    finally:
        server.stop()


@pytest.mark.parametrize("stage", ["tcp", "banner", "kex"])
def test_cancel_in_the_middle_of_a_connect(head: Head, stage: str) -> None:
    cancel = Cancel()
    threading.Timer(0.3, cancel.set).start()
    with listener(None if stage != "kex" else lambda peer: peer.sendall(b"SSH-2.0-x\r\n")) as port:
        host = Host("gpu1", "127.0.0.1" if stage != "tcp" else "198.18.255.254", port=port)
        begin = time.monotonic()
        with pytest.raises(FleetError) as caught:
            transport(head, 30).connect(host, cancel)
        assert time.monotonic() - begin < 2
    if stage != "tcp":  # without a route to that network it is unreachable at once
        assert isinstance(caught.value, Interrupted)


def test_threads_and_files_go_back_to_where_they_were(head: Head, sshd: Sshd) -> None:
    made = transport(head, 10)

    def one(_: int) -> int:
        session = made.connect(sshd.host(), Cancel())
        try:
            return run_line(session, "true").status
        finally:
            session.close()

    assert one(0) == 0
    wait_until(lambda: not transport_threads())
    threads, files = threading.active_count(), open_files()
    assert [r for _, r in fanout.run(range(40), one, limit=16, cancel=Cancel())] == [0] * 40
    with listener() as port:
        for _ in range(3):
            failure(head, Host("x", "127.0.0.1", port=port), 0.3)
    wait_until(lambda: threading.active_count() <= threads and open_files() <= files)


# -- many at one sshd, gateways --------------------------------------------------------------------------


def test_sixty_four_at_one_sshd_with_default_limits(head: Head, sshd: Sshd) -> None:
    made = transport(head, 10)

    def one(index: int) -> bytes:
        session = made.connect(sshd.host(f"n{index}"), Cancel())
        try:
            return run_line(session, f"echo {index}").stdout
        finally:
            session.close()

    results = dict(fanout.run(range(64), one, limit=64, cancel=Cancel()))
    assert results == {i: b"%d\n" % i for i in range(64)}


def test_many_names_for_one_silent_sshd_fail_together(head: Head) -> None:
    made = transport(head, 1)
    with listener() as port:
        begin = time.monotonic()
        results = list(fanout.run(
            range(40), lambda i: made.connect(Host(f"n{i}", "127.0.0.1", port=port), Cancel()), cancel=Cancel()))
        assert time.monotonic() - begin < 2
    assert all(isinstance(r, ConnectError) and r.kind == "banner" and r.host == f"n{i}" for i, r in results)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Sshd]]:
    """A bastion with default limits, and 64 addresses (4 sshd with 16 each) behind it."""
    root = tmp_path_factory.mktemp("farm")
    bastion = Sshd(root / "bastion")
    port = free_port("127.7.0.1")
    nodes = [Sshd(root / f"n{i}", addresses=[f"127.7.{i}.{j}" for j in range(1, 17)], port=port,
                  settings=["MaxStartups 100"]) for i in range(4)]
    yield [bastion, *nodes]
    for server in (bastion, *nodes):
        server.stop()


def test_sixty_four_behind_one_bastion(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, *nodes = farm
    for server in farm:
        head.trusted_by(server)
    hop = f"127.0.0.1:{bastion.port}"
    hosts = [n.host(f"n{a}", a, proxy_jump=hop) for n in nodes for a in n.addresses]
    made = transport(head, 20)
    before = bastion.log().count("Connection from")

    def one(host: Host) -> bytes:
        session = made.connect(host, Cancel())
        try:
            return run_line(session, 'echo "$SSH_CONNECTION"').stdout
        finally:
            session.close()

    results = {h.address: r for h, r in fanout.run(hosts, one, limit=64, cancel=Cancel())}
    assert len(results) == 64
    for address, out in results.items():
        assert isinstance(out, bytes), out
        assert out.split()[2] == address.encode()
    assert bastion.log().count("Connection from") - before == 1
    assert open_files() < 200
    made.close()
    wait_until(lambda: not transport_threads())


def test_gateway_failures_name_the_gateway(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, node = farm[:2]
    head.trusted_by(bastion)
    hop = f"127.0.0.1:{bastion.port}"
    error = failure(head, node.host(proxy_jump=hop))
    assert error.kind == "unknown-host-key"
    head.trusted_by(node)
    # the target refuses, does not resolve: the target's kind, with the gateway named
    error = failure(head, Host("x", "127.0.0.1", port=free_port(), proxy_jump=hop))
    assert (error.kind, "gateway 127.0.0.1" in error.message) == ("refused", True)
    error = failure(head, Host("x", "no-such-host.invalid", proxy_jump=hop))
    assert error.kind == "resolve"
    # the gateway is down, silent, unknown, does not let us in
    error = failure(head, node.host(proxy_jump=f"127.0.0.1:{free_port()}"))
    assert error.kind == "gateway"
    assert "refused" in error.message
    with listener() as port:
        error = failure(head, node.host(proxy_jump=f"127.0.0.1:{port}"), WAIT)
    assert (error.kind, "says nothing" in error.message) == ("gateway", True)
    assert failure(head, node.host(proxy_jump="-oProxyCommand=id")).kind == "gateway"
    with listener() as silent:
        error = failure(head, Host("x", "127.0.0.1", port=silent, proxy_jump=hop), 3.0)
    assert error.kind == "banner"


def test_a_gateway_with_a_swapped_key_gets_nothing(tmp_path: Path, head: Head, sshd: Sshd) -> None:
    bastion = Sshd(tmp_path / "b")
    try:
        bastion.allow(head.public)
        head.known_hosts.write_text(head.known_hosts.read_text() + f"[127.0.0.1]:{bastion.port} {sshd.public_key()}\n")
        error = failure(head, sshd.host(proxy_jump=f"127.0.0.1:{bastion.port}"))
        assert error.kind == "gateway"
        assert error.message.count("SHA256:") == 2
        assert "root" not in bastion.log()
    finally:
        bastion.stop()


def test_chains_inventory_names_and_the_bastion_itself(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, inner, node = farm[:3]
    for server in (bastion, inner, node):
        head.trusted_by(server)
    hosts = [bastion.host("door", proxy_jump="door"), inner.host("inner", proxy_jump="door"),
             node.host("node", proxy_jump="inner")]
    made = transport(head, 10, hosts=hosts)
    assert [h.name for h in made.route(hosts[2])] == ["door", "inner"]
    session = made.connect(hosts[2], Cancel())
    client = run_line(session, 'echo "$SSH_CONNECTION"').stdout.split()
    assert client[2].decode() == node.addresses[0]
    session.close()
    made.connect(hosts[0], Cancel()).close()
    # the same chain, spelled in one host
    plain = f"127.0.0.1:{bastion.port},{inner.addresses[0]}:{inner.port}"
    made.connect(node.host("other", proxy_jump=plain), Cancel()).close()
    loop = [inner.host("a", proxy_jump="b"), node.host("b", proxy_jump="a")]
    with pytest.raises(ConnectError, match="loop"):
        transport(head, 10, hosts=loop).connect(loop[0], Cancel())
    made.close()


def test_a_gateway_that_dies_is_named_and_comes_back(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, node = Sshd(tmp_path / "b"), farm[1]
    try:
        head.trusted_by(bastion)
        head.trusted_by(node)
        made = transport(head, 5)
        host = node.host(proxy_jump=f"127.0.0.1:{bastion.port}")
        session = made.connect(host, Cancel())
        channel = session.start("sleep 60")
        for pid in bastion.children():
            os.kill(pid, 9)
        with pytest.raises(ConnectError) as caught:
            while channel.recv(5) is None:
                pass
        assert caught.value.kind == "gateway"
        session.close()
        again = made.connect(host, Cancel())
        assert run_line(again, "echo back").stdout == b"back\n"
        again.close()
        made.close()
    finally:
        bastion.stop()


def test_a_gateway_that_freezes_is_told_from_a_host_behind_it(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, node = Sshd(tmp_path / "b"), farm[1]
    try:
        head.trusted_by(bastion)
        head.trusted_by(node)
        made = transport(head, 1.5)
        host = node.host(proxy_jump=f"127.0.0.1:{bastion.port}")
        made.connect(host, Cancel()).close()
        for pid in bastion.children():
            os.kill(pid, 19)
        begin = time.monotonic()
        hosts = [node.host(a, a, proxy_jump=host.proxy_jump) for a in node.addresses]
        results = [r for _, r in fanout.run(hosts, lambda h: made.connect(h, Cancel()), cancel=Cancel())]
        assert time.monotonic() - begin < 2.5
        assert [r.kind for r in results if isinstance(r, ConnectError)] == ["gateway"] * len(hosts)
        # whoever comes next gets a new connection to it
        again = made.connect(host, Cancel())
        assert run_line(again, "echo back").stdout == b"back\n"
        again.close()
        made.close()
    finally:
        bastion.stop()


def test_cancel_while_a_gateway_is_connecting(head: Head, sshd: Sshd) -> None:
    cancel = Cancel()
    threading.Timer(0.3, cancel.set).start()
    with listener() as port:
        made = transport(head, 30)
        host = sshd.host(proxy_jump=f"127.0.0.1:{port}")
        begin = time.monotonic()
        results = [r for _, r in fanout.run(range(20), lambda _: made.connect(host, cancel), cancel=cancel)]
        assert time.monotonic() - begin < 2
    assert all(isinstance(r, Interrupted) for r in results)


def test_host_keys_are_fetched_through_gateways(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, node = farm[:2]
    head.trusted_by(bastion)
    made = transport(head, 10)
    key = made.host_key(node.host(proxy_jump=f"127.0.0.1:{bastion.port}"), Cancel())
    assert key.text == node.public_key()
    made.close()


# -- helpers ---------------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.02)


def transport_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if type(t).__name__ == "Link"]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def swallow(work: Callable[[], object]) -> None:
    with contextlib.suppress(FleetError):
        work()
