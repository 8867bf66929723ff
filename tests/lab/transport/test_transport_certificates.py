"""Certificates for the user's keys, and which agent is asked: as the ssh config says."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import ConnectError
from fleet.transport.base import Cancel
from tests.lab.private_sshd import Head, Sshd, make_key, running_agent
from tests.lab.transport_tools import over, transport

# ssh itself takes ~ from the user database, not from a test's HOME: what names a file by it is not for openssh here
KINDS = ("ssh", "openssh", "pdsh")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = tmp_path_factory.mktemp("authority") / "ca"
    make_key(key)
    return key


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, authority: Path) -> Iterator[Sshd]:
    """An sshd that takes certificates of this authority and no plain key."""
    server = Sshd(tmp_path_factory.mktemp("strict") / "a", settings=[f"TrustedUserCAKeys {authority}.pub"])
    yield server
    server.stop()


@pytest.fixture()
def head(tmp_path: Path, strict: Sshd) -> Head:
    made = Head(tmp_path / "home")
    made.knows(strict)
    return made


def certify(authority: Path, public: Path) -> Path:
    """The certificate for a public key, beside it."""
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "root", public], check=True)
    return public.with_name(f"{public.stem}-cert.pub")


@pytest.fixture()
def agent(tmp_path: Path) -> Iterator[Path]:
    """A real agent; the path of its socket."""
    with running_agent(tmp_path / "agent"):
        yield tmp_path / "agent"


def add(agent: Path, key: Path) -> None:
    subprocess.run(["ssh-add", "-q", key], check=True, env={"SSH_AUTH_SOCK": str(agent), "PATH": "/usr/bin:/bin"})


def get_in(head: Head, sshd: Sshd) -> None:
    with contextlib.closing(transport(head)) as made:
        made.connect(sshd.host(), Cancel()).close()


def refusal(head: Head, sshd: Sshd) -> str:
    with contextlib.closing(transport(head)) as made, pytest.raises(ConnectError) as caught:
        made.connect(sshd.host(), Cancel())
    assert caught.value.kind == "auth"
    return caught.value.message


@pytest.mark.parametrize("key_type", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_beside_its_key(head: Head, strict: Sshd, authority: Path, key_type: str) -> None:
    for file in head.ssh.glob("id_*"):
        file.unlink()
    make_key(head.ssh / f"id_{key_type}", key_type)
    assert "publickey (id_" in refusal(head, strict)
    certify(authority, head.ssh / f"id_{key_type}.pub")
    get_in(head, strict)


@over("ssh")
def test_a_certificate_that_the_config_names(head: Head, strict: Sshd, authority: Path) -> None:
    made = certify(authority, head.public)
    made.rename(head.home / "work-cert.pub")
    refusal(head, strict)
    (head.ssh / "config").write_text("CertificateFile ~/work-cert.pub\n")
    get_in(head, strict)
    (head.ssh / "config").write_text("CertificateFile ~/work.pub\n")
    assert "work.pub: not a certificate" in refusal(head, strict)


def test_a_certificate_for_another_key_is_not_offered(head: Head, strict: Sshd, authority: Path) -> None:
    make_key(head.home / "other")
    certify(authority, head.home / "other.pub").rename(head.ssh / "id_ed25519-cert.pub")
    assert "tried publickey (id_ed25519);" in refusal(head, strict)


@over("ssh")
def test_a_certificate_for_the_agents_key(
    head: Head, strict: Sshd, authority: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(head.home / "held")
    add(agent, head.home / "held")
    certify(authority, head.home / "held.pub")
    (head.ssh / "config").write_text(f"CertificateFile ~/held-cert.pub\nIdentityAgent {agent}\n")
    get_in(head, strict)
    # and where the agent holds the certificate itself
    (head.ssh / "config").write_text("")
    add(agent, head.home / "held")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    get_in(head, strict)


def test_the_agent_that_the_config_names(head: Head, sshd: Sshd, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head.trusted_by(sshd)
    (head.ssh / "id_ed25519").rename(head.home / "elsewhere")
    head.public.unlink()
    add(agent, head.home / "elsewhere")
    config = head.ssh / "config"
    refusal(head, sshd)
    config.write_text(f"IdentityAgent {agent}\n")
    get_in(head, sshd)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    monkeypatch.setenv("OTHER_SOCK", str(agent))
    for text, works in (
        ("", True),
        ("IdentityAgent none", False),
        ("IdentityAgent SSH_AUTH_SOCK", True),
        ("IdentityAgent $OTHER_SOCK", True),
        ("IdentityAgent /nowhere", False),
    ):
        config.write_text(text + "\n")
        if works:
            get_in(head, sshd)
        else:
            refusal(head, sshd)
