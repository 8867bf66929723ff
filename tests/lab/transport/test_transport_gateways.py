"""Many at one sshd, and bastions."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fleet import fanout
from fleet.errors import ConnectError, Interrupted
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.shell import run_line
from fleet.transport.ssh.dial import Deadline
from fleet.transport.ssh.transport import must_answer
from tests.free_port import free_port
from tests.lab.private_sshd import Head, Sshd, listener
from tests.lab.transport_tools import (
    TIMEOUT,
    failure,
    open_files,
    over,
    stuck,
    transport,
    transport_threads,
    wait_until,
)

KINDS = ("ssh", "openssh", "pdsh")
# more than an sshd takes at once; the system's ssh is a process and a key exchange each
MANY = {"ssh": 32, "openssh": 12, "pdsh": 12}


def test_many_at_one_sshd_with_default_limits(head: Head, sshd: Sshd, kind: str) -> None:
    made = transport(head)

    def one(index: int) -> bytes:
        session = made.connect(sshd.host(f"n{index}"), Cancel())
        try:
            return run_line(session, f"echo {index}").stdout
        finally:
            session.close()

    results = dict(fanout.run(range(MANY[kind]), one, limit=64, cancel=Cancel()))
    assert results == {i: b"%d\n" % i for i in range(MANY[kind])}


@over("ssh")
def test_many_names_for_one_silent_sshd_fail_together(head: Head) -> None:
    made = transport(head, 4)
    with listener() as port:
        begin = time.monotonic()
        results = list(
            fanout.run(
                range(40), lambda i: made.connect(Host(f"n{i}", "127.0.0.1", port=port), Cancel()), cancel=Cancel()
            )
        )
        assert time.monotonic() - begin < 300, "not one after the other"
    assert all(isinstance(r, ConnectError) and r.kind == "banner" and r.host == f"n{i}" for i, r in results)


def test_many_behind_one_bastion(tmp_path: Path, farm: list[Sshd], kind: str) -> None:
    head = Head(tmp_path / "h")
    bastion, *nodes = farm
    for server in farm:
        head.trusted_by(server)
    hop = f"127.0.0.1:{bastion.port}"
    hosts = [n.host(f"n{a}", a, proxy_jump=hop) for n in nodes for a in n.addresses][: MANY[kind]]
    made = transport(head)
    before = bastion.log().count("Connection from")

    def one(host: Host) -> bytes:
        session = made.connect(host, Cancel())
        try:
            return run_line(session, 'echo "$SSH_CONNECTION"').stdout
        finally:
            session.close()

    results = {h.address: r for h, r in fanout.run(hosts, one, limit=64, cancel=Cancel())}
    assert len(results) == MANY[kind]
    for address, out in results.items():
        assert isinstance(out, bytes), out
        assert out.split()[2] == address.encode()
    assert bastion.log().count("Connection from") - before == 1
    assert open_files() < 200
    made.close()
    wait_until(lambda: not transport_threads())


def test_gateway_failures_name_the_gateway(tmp_path: Path, farm: list[Sshd], kind: str) -> None:
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
        error = stuck(head, node.host(proxy_jump=f"127.0.0.1:{port}"), "gateway", "sends nothing")
    assert (error.kind, "sends nothing" in error.message) == ("gateway", True)
    assert failure(head, node.host(proxy_jump="-oProxyCommand=id")).kind == "gateway"
    with listener() as silent:
        # to OpenSSH's client, a host that the gateway has not reached is as silent
        wanted = "banner" if kind == "ssh" else "timeout"
        assert stuck(head, Host("x", "127.0.0.1", port=silent, proxy_jump=hop), wanted, limit=10.0).kind == wanted


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
    hosts = [
        bastion.host("door", proxy_jump="door"),
        inner.host("inner", proxy_jump="door"),
        node.host("node", proxy_jump="inner"),
    ]
    made = transport(head, hosts=hosts)
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
        transport(head, hosts=loop).connect(loop[0], Cancel())
    made.close()


def test_a_gateway_that_dies_is_named_and_comes_back(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, node = Sshd(tmp_path / "b"), farm[1]
    try:
        head.trusted_by(bastion)
        head.trusted_by(node)
        made = transport(head)
        host = node.host(proxy_jump=f"127.0.0.1:{bastion.port}")
        session = made.connect(host, Cancel())
        channel = session.start("echo up; sleep 40")
        assert channel.recv(TIMEOUT) == b"up\n"
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


@over("ssh")
def test_a_gateway_that_freezes_is_told_from_a_host_behind_it(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, node = Sshd(tmp_path / "b"), farm[1]
    try:
        head.trusted_by(bastion)
        head.trusted_by(node)
        made = transport(head)
        host = node.host(proxy_jump=f"127.0.0.1:{bastion.port}")
        made.connect(host, Cancel()).close()
        for pid in bastion.children():
            os.kill(pid, 19)
        bastion.freeze()  # for whoever comes as late as that
        made.options = ConnectOptions(1.5)
        hosts = [node.host(a, a, proxy_jump=host.proxy_jump) for a in node.addresses]
        results = [r for _, r in fanout.run(hosts, lambda h: made.connect(h, Cancel()), cancel=Cancel())]
        assert [r.kind for r in results if isinstance(r, ConnectError)] == ["gateway"] * len(hosts)
        # whoever comes next gets a new connection to it
        bastion.heal()
        made.options = ConnectOptions(TIMEOUT)
        again = made.connect(host, Cancel())
        assert run_line(again, "echo back").stdout == b"back\n"
        again.close()
        made.close()
    finally:
        bastion.stop()


@over("ssh")
def test_a_gateway_that_is_slow_to_answer_is_not_given_up(tmp_path: Path, head: Head) -> None:
    """All that goes through it would be lost, for the sake of one host behind it that is dead."""
    bastion = Sshd(tmp_path / "b")
    try:
        head.trusted_by(bastion)
        session = transport(head).connect(bastion.host(), Cancel())
        for pid in bastion.children():
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(2.0, os.kill, (pid, signal.SIGCONT)).start()
        must_answer(session.link, "door", Deadline.after(TIMEOUT, Cancel()))
        assert run_line(session, "echo still").stdout == b"still\n"
        session.close()
    finally:
        bastion.stop()


def test_cancel_while_a_gateway_is_connecting(head: Head, sshd: Sshd) -> None:
    cancel = Cancel()
    threading.Timer(0.3, cancel.set).start()
    with listener() as port:
        made = transport(head)
        host = sshd.host(proxy_jump=f"127.0.0.1:{port}")
        results = [r for _, r in fanout.run(range(20), lambda _: made.connect(host, cancel), cancel=cancel)]
    assert all(isinstance(r, Interrupted) for r in results)


@over("ssh")
def test_host_keys_are_fetched_through_gateways(tmp_path: Path, farm: list[Sshd]) -> None:
    head = Head(tmp_path / "h")
    bastion, node = farm[:2]
    head.trusted_by(bastion)
    made = transport(head)
    key = made.host_key(node.host(proxy_jump=f"127.0.0.1:{bastion.port}"), Cancel())
    assert key.text == node.public_key()
    made.close()
