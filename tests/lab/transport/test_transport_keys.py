"""Private keys in every form people have them, and agents that do not answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.transport.base import Cancel
from tests.lab.private_sshd import Head, Sshd, hung_agent, make_key
from tests.lab.transport_tools import failure, stuck, transport


def openssl_key(file: Path, *how: str, passphrase: str = "") -> None:
    """A key as `openssl genpkey` writes it (PKCS8), and its public half as sshd wants it."""
    from cryptography.hazmat.primitives import serialization as form

    lock = ["-aes256", "-pass", f"pass:{passphrase}"] if passphrase else []
    subprocess.run(["openssl", "genpkey", *how, *lock, "-out", str(file)], check=True, capture_output=True)
    file.chmod(0o600)
    key = form.load_pem_private_key(file.read_bytes(), passphrase.encode() or None)
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    Path(f"{file}.pub").write_bytes(public + b" me\n")


KEYS = {
    "ed25519": ["-algorithm", "ed25519"],
    "rsa": ["-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:2048"],
    "p256": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
    "p521": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"],
}


@pytest.mark.parametrize("key_type", KEYS)
def test_a_pkcs8_key_logs_in(key_type: str, tmp_path: Path, head: Head, sshd: Sshd) -> None:
    openssl_key(tmp_path / "k", *KEYS[key_type])
    assert (tmp_path / "k").read_text().startswith("-----BEGIN PRIVATE KEY-----")
    sshd.allow(tmp_path / "k.pub")
    transport(head).connect(sshd.host(identity_file=str(tmp_path / "k")), Cancel()).close()


def test_a_pkcs8_key_with_a_passphrase_or_of_another_kind_is_named(tmp_path: Path, head: Head, sshd: Sshd) -> None:
    openssl_key(tmp_path / "locked", *KEYS["ed25519"], passphrase="secret")
    assert "it has a passphrase" in failure(head, sshd.host(identity_file=str(tmp_path / "locked"))).message
    openssl_key(tmp_path / "ed448", "-algorithm", "ed25519")
    (tmp_path / "ed448").write_bytes(
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed448"], check=True, capture_output=True).stdout
    )
    assert (
        "not a private key that fleet can read"
        in failure(head, sshd.host(identity_file=str(tmp_path / "ed448"))).message
    )


# -- agents that hang -------------------------------------------------------------------------------------
@pytest.fixture()
def keyless(head: Head) -> Head:
    """A head that has nothing but what an agent holds."""
    (head.ssh / "id_ed25519").rename(head.home / "elsewhere")
    head.public.rename(head.home / "elsewhere.pub")
    return head


@pytest.mark.parametrize("how", ["accepts", "full", "lists"])
def test_a_hung_agent_is_named_in_time(
    how: str, tmp_path: Path, keyless: Head, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with hung_agent(tmp_path / "agent", how, keyless.home / "elsewhere.pub"):
        error = stuck(keyless, sshd.host(), "auth", limit=4.0)
    assert error.kind == "auth"
    assert f"the ssh-agent at {tmp_path}/agent does not answer" in error.message
    assert error.hint is not None and "unset SSH_AUTH_SOCK" in error.hint


def test_a_hung_agent_is_nothing_to_a_key_that_is_let_in(
    tmp_path: Path, head: Head, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with hung_agent(tmp_path / "agent", "accepts"):
        transport(head).connect(sshd.host(), Cancel()).close()


@pytest.mark.parametrize(
    "verb",
    [
        ["exec", "--", "true"],
        ["check"],
        ["sync", "code"],
        ["sync", "--data", "fleet.yaml:/tmp/x"],
        ["launch", "--engine", "command", "x.sh"],
        ["kill-port", "1"],
    ],
    ids=" ".join,
)
def test_a_hung_agent_is_bounded_for_every_verb(verb: list[str], tmp_path: Path, keyless: Head, sshd: Sshd) -> None:
    host = f"{{address: 127.0.0.1, port: {sshd.port}, workdir: /tmp/none}}"
    (tmp_path / "fleet.yaml").write_text(f"hosts: {{n1: {host}}}")
    (tmp_path / "code").mkdir()
    env = {**os.environ, "HOME": str(keyless.home), "SSH_AUTH_SOCK": str(tmp_path / "agent")}
    with hung_agent(tmp_path / "agent", "accepts"):
        for limit in ("2", "8", "32"):  # a busy machine may not come as far as the agent
            done = subprocess.run(
                [str(Path(sys.executable).with_name("fleet")), "--connect-timeout", limit, *verb],
                env=env,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
            )
            if "the ssh-agent at" in done.stderr:
                break
    assert done.returncode == 122, done.stderr
    assert "the ssh-agent at" in done.stderr and "does not answer" in done.stderr


# -- MaxAuthTries -----------------------------------------------------------------------------------------
def test_one_try_is_enough_for_the_right_key_and_named_for_the_wrong_one(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s", settings=["MaxAuthTries 1"])
    try:
        head.trusted_by(server)
        transport(head).connect(server.host(), Cancel()).close()
        make_key(tmp_path / "wrong")
        (head.ssh / "config").write_text(f"IdentityFile {tmp_path}/wrong\nIdentityFile ~/.ssh/id_ed25519\n")
        error = failure(head, server.host())
    finally:
        server.stop()
    assert error.kind == "auth" and "publickey (wrong)" in error.message
    assert "Too many authentication failures" in error.message
    assert error.hint is not None and "MaxAuthTries 6" in error.hint and "identity_file" in error.hint


def test_a_key_that_others_can_read_is_not_offered(tmp_path: Path, head: Head, sshd: Sshd) -> None:
    openssl_key(tmp_path / "k", *KEYS["ed25519"])
    sshd.allow(tmp_path / "k.pub")
    (tmp_path / "k").chmod(0o640)
    assert (
        "others can read it, so ssh would not use it: chmod 600"
        in failure(head, sshd.host(identity_file=str(tmp_path / "k"))).message
    )
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o640
