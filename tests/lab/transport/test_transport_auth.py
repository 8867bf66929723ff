"""Authentication against a server that counts: what is offered, how often, and what is said when it is refused."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.ssh.channel import SshSession
from fleet.transport.ssh.transport import SshTransport
from tests.lab.private_sshd import Head, listener, make_key
from tests.lab.transport_tools import TIMEOUT

PASSWORD = "correct horse"


class Policy(paramiko.ServerInterface):
    """Records every attempt as text; `methods` is what it allows."""

    def __init__(self, methods: str, accept_keys: bool = False, second_factor: bool = False, slow: float = 0) -> None:
        self.methods, self.accept_keys, self.second_factor, self.slow = methods, accept_keys, second_factor, slow
        self.seen: list[str] = []

    def get_allowed_auths(self, username: str) -> str:
        return self.methods

    def check_auth_none(self, username: str) -> int:
        self.seen.append("none")
        return paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: Any) -> int:
        self.seen.append("publickey")
        time.sleep(self.slow)
        if self.second_factor:
            return paramiko.AUTH_PARTIALLY_SUCCESSFUL
        return paramiko.AUTH_SUCCESSFUL if self.accept_keys else paramiko.AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        if "password" not in self.methods:
            return paramiko.AUTH_FAILED
        self.seen.append(f"password {password}")
        return paramiko.AUTH_SUCCESSFUL if password == PASSWORD else paramiko.AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        if "keyboard-interactive" not in self.methods:
            return paramiko.AUTH_FAILED
        return paramiko.InteractiveQuery("", "", ("Password: ", False), ("Your name: ", True))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self.seen.append(f"interactive {responses}")
        return paramiko.AUTH_SUCCESSFUL if responses == [PASSWORD, ""] else paramiko.AUTH_FAILED


class Closing(Policy):
    """Lets everybody in; closes this many channels where it is asked to run something, as Dropbear does while the
    command of an earlier one ends. denies: it says no instead."""

    def __init__(self, closes: int, denies: bool = False) -> None:
        super().__init__("publickey", accept_keys=True)
        self.closes, self.denies, self.asked = closes, denies, 0

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        self.asked += 1
        if self.asked <= self.closes and not self.denies:
            channel.close()
        return self.asked > self.closes


@contextlib.contextmanager
def server(policy: Policy, key_file: Path) -> Iterator[int]:
    transports: list[paramiko.Transport] = []

    def serve(peer: socket.socket) -> None:
        made = paramiko.Transport(peer)
        made.add_server_key(paramiko.Ed25519Key(filename=str(key_file)))
        transports.append(made)
        made.start_server(event=threading.Event(), server=policy)

    with listener(serve) as port:
        try:
            yield port
        finally:
            for made in transports:
                made.close()
                made.join(5)


@pytest.fixture()
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    make_key(tmp_path / "hostkey")
    return Head(tmp_path / "home")


def connect(
    head: Head,
    policy: Policy,
    password: str | None = None,
    timeout: float = TIMEOUT,
    then: Callable[[SshSession], object] = lambda session: None,
    **fields: Any,
) -> None:
    """Connect, do that and close; raises what connect raises. The password must be in no text of the error."""
    key_file = head.home.parent / "hostkey"
    with server(policy, key_file) as port:
        head.known_hosts.write_text(f"[127.0.0.1]:{port} {Path(f'{key_file}.pub').read_text()}")
        made = SshTransport(
            ConnectOptions(timeout), home=head.home, password_for=(lambda _: password) if password else None
        )
        try:
            session = made.connect(Host("gpu1", "127.0.0.1", port=port, user="train", **fields), Cancel())
            with contextlib.closing(session):
                then(session)
        except ConnectError as error:
            assert not password or password not in f"{error} {error.hint} {error.__cause__}"
            raise
        finally:
            made.close()


def refusal(head: Head, policy: Policy, password: str | None = None, **more: Any) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        connect(head, policy, password, **more)
    return caught.value


def test_a_key_is_offered_first_and_alone(head: Head) -> None:
    policy = Policy("publickey,password", accept_keys=True)
    connect(head, policy, PASSWORD)
    assert policy.seen == ["publickey"]


def test_the_password_comes_after_the_keys_and_once(head: Head) -> None:
    policy = Policy("publickey,password")
    connect(head, policy, PASSWORD)
    assert policy.seen == ["publickey", f"password {PASSWORD}"]


def test_a_wrong_password_is_tried_exactly_once(head: Head) -> None:
    policy = Policy("publickey,password,keyboard-interactive")
    error = refusal(head, policy, "wrong one")
    assert policy.seen == ["publickey", "password wrong one"]
    assert error.kind == "auth"
    assert "tried publickey (id_ed25519), password" in error.message
    assert "allows publickey, password" in error.message
    assert error.hint is not None
    assert "password" in error.hint


def test_a_server_that_asks_interactively(head: Head) -> None:
    policy = Policy("keyboard-interactive")
    connect(head, policy, PASSWORD)
    assert policy.seen[-1] == f"interactive {[PASSWORD, '']}"
    policy = Policy("keyboard-interactive")
    error = refusal(head, policy, "wrong one")
    assert sum(s.startswith("interactive") for s in policy.seen) == 1
    assert "keyboard-interactive" in error.message


def test_no_password_goes_to_a_server_that_takes_keys_only(head: Head) -> None:
    policy = Policy("publickey")
    error = refusal(head, policy, PASSWORD)
    assert policy.seen == ["publickey"]
    assert "allows publickey" in error.message


def test_without_password_for_none_is_ever_tried(head: Head) -> None:
    policy = Policy("publickey,password,keyboard-interactive")
    error = refusal(head, policy)
    assert policy.seen == ["publickey"]
    assert error.hint is not None
    assert "setup-ssh" in error.hint


def test_many_keys_stay_under_maxauthtries(head: Head) -> None:
    names = [f"k{i}" for i in range(8)]
    for name in names:
        make_key(head.ssh / name)
    (head.ssh / "config").write_text("".join(f"IdentityFile ~/.ssh/{n}\n" for n in names))
    policy = Policy("publickey,password")
    connect(head, policy, PASSWORD)
    assert policy.seen == ["publickey"] * 5 + [f"password {PASSWORD}"]


def test_no_key_at_all_still_says_what_is_allowed(head: Head) -> None:
    (head.ssh / "id_ed25519").unlink()
    error = refusal(head, Policy("publickey,hostbased"))
    assert "there is no key to offer" in error.message
    assert "publickey, hostbased" in error.message


def test_a_second_factor_is_named(head: Head) -> None:
    error = refusal(head, Policy("keyboard-interactive", second_factor=True))
    assert error.kind == "auth"
    assert "second factor" in error.message


def test_a_server_that_freezes_while_it_authenticates(head: Head) -> None:
    for limit in (1.0, 4.0, 16.0):  # a busy machine may not come as far as that
        error = refusal(head, Policy("publickey", slow=limit + 2), timeout=limit)
        if "authentication" in error.message:
            break
    assert error.kind == "timeout"
    assert "authentication" in error.message


@pytest.mark.parametrize("key_type", ["rsa", "ecdsa", "ed25519"])
def test_key_types(head: Head, key_type: str) -> None:
    make_key(head.home / "k", key_type)
    policy = Policy("publickey", accept_keys=True)
    connect(head, policy, identity_file=str(head.home / "k"))
    assert policy.seen == ["publickey"]


def test_a_channel_that_is_closed_at_once_is_opened_again_and_again(head: Head) -> None:
    connect(head, policy := Closing(3), then=lambda session: session.start("true"))
    assert policy.asked == 4
    with pytest.raises(ConnectError, match="refuses to run commands"):
        connect(head, policy := Closing(1, denies=True), then=lambda session: session.start("true"))
    assert policy.asked == 1


@pytest.mark.timeout(60)
def test_a_key_that_is_a_pipe_is_waited_for_by_nobody(head: Head) -> None:
    os.mkfifo(head.home / "k")
    with pytest.raises(ConnectError):
        connect(head, Policy("publickey"), identity_file=str(head.home / "k"))
