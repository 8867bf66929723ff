"""Host keys: the right one, the wrong one, none on file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fleet.transport.base import Cancel
from tests.lab.private_sshd import Head, Sshd
from tests.lab.transport_tools import failure, over, transport

KINDS = ("ssh", "openssh", "pdsh")


@pytest.mark.parametrize("key_type", ["ed25519", "rsa", "ecdsa"])
def test_the_key_type_on_file_is_asked_for(tmp_path: Path, sshd: Sshd, key_type: str) -> None:
    head = Head(tmp_path / "h")
    head.knows(sshd, key_type)
    sshd.allow(head.public)
    transport(head).connect(sshd.host(), Cancel()).close()


def test_hashed_known_hosts(head: Head, sshd: Sshd) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", str(head.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in head.known_hosts.read_text()
    transport(head).connect(sshd.host(), Cancel()).close()


def test_a_swapped_host_key_is_refused_and_nothing_is_sent(tmp_path: Path, head: Head, kind: str) -> None:
    old = Sshd(tmp_path / "old")
    head.trusted_by(old)
    try:
        transport(head).connect(old.host(), Cancel()).close()
    finally:
        old.stop()
    new = Sshd(tmp_path / "new", port=old.port)
    try:
        new.allow(head.public)
        asked: list[str] = []
        error = failure(
            head,
            new.host("gpu7"),
            **({"password_for": lambda h: asked.append(h.name) or "secret"} if kind == "ssh" else {}),
        )
        assert error.kind == "host-key"
        for server in (old, new):
            said = subprocess.run(
                ["ssh-keygen", "-lf", str(server.folder / "host_ed25519.pub")],
                capture_output=True,
                text=True,
                check=True,
            )
            assert said.stdout.split()[1] in error.message
        assert error.hint is not None
        assert "fleet setup-ssh --replace-key gpu7" in error.hint
        log = new.log()
        assert "Connection from" in log
        for trace in ("user root", "root", "Accepted", "Failed", "publickey", "password"):
            assert trace not in log.replace(str(new.folder), "")
    finally:
        new.stop()


@over("ssh")
def test_unknown_key_and_enrolment(tmp_path: Path, sshd: Sshd) -> None:
    head = Head(tmp_path / "h")
    sshd.allow(head.public)
    error = failure(head, sshd.host())
    assert error.kind == "unknown-host-key"
    assert error.hint is not None
    assert "setup-ssh" in error.hint
    made = transport(head)
    for kind in ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256"):
        key = made.host_key(sshd.host(), Cancel(), kind)
        assert key.type == kind
        assert key.text == sshd.public_key({"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(kind, "ecdsa"))
        assert key.fingerprint.startswith("SHA256:")
    # enrolled while the same transport lives
    head.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {made.host_key(sshd.host(), Cancel()).text}\n")
    made.connect(sshd.host(), Cancel()).close()


def fingerprint(sshd: Sshd, key_type: str) -> str:
    said = subprocess.run(
        ["ssh-keygen", "-lf", sshd.folder / f"host_{key_type}.pub"], capture_output=True, text=True, check=True
    )
    return said.stdout.split()[1]


def test_a_pin_is_enough_and_finds_its_key_type(tmp_path: Path, sshd: Sshd) -> None:
    head = Head(tmp_path / "h")
    sshd.allow(head.public)
    made = transport(head)
    pins = {key_type: fingerprint(sshd, key_type) for key_type in ("ed25519", "rsa")}
    for pin in pins.values():
        made.connect(sshd.host(host_key=pin), Cancel()).close()
    wrong = "SHA256:" + "A" * 43
    for on_file in ("", f"[127.0.0.1]:{sshd.port} {sshd.public_key()}\n"):  # the pin also holds for a key on file
        head.known_hosts.write_text(on_file)
        error = failure(head, sshd.host(host_key=wrong))
        assert error.kind == "host-key"
        assert wrong in error.message
        assert pins["ed25519"] in error.message


def test_a_pin_does_not_overrule_what_is_on_file(tmp_path: Path, sshd: Sshd) -> None:
    head = Head(tmp_path / "h")
    sshd.allow(head.public)
    head.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {' '.join(head.public.read_text().split()[:2])}\n")
    error = failure(head, sshd.host(host_key=fingerprint(sshd, "ed25519")))
    assert (error.kind, "known_hosts:1" in error.message) == ("host-key", True)


def test_an_unknown_key_is_told(tmp_path: Path, sshd: Sshd) -> None:
    error = failure(Head(tmp_path / "h"), sshd.host())
    assert (error.kind, "fleet setup-ssh" in str(error.hint)) == ("unknown-host-key", True)
    assert fingerprint(sshd, "ed25519") in error.message
