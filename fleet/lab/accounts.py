"""The hosts' keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fleet.lab.state import write_file


def make_host_keys(folder: Path, hosts: Sequence[str]) -> None:
    """An ed25519 host key for each host that has none; kept over down and up."""
    for host in hosts:
        private, public = (folder / host / f"ssh_host_ed25519_key{ending}" for ending in ("", ".pub"))
        if public.exists():
            continue
        key = Ed25519PrivateKey.generate()
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        private.parent.mkdir(mode=0o700, exist_ok=True)
        write_file(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode())
        write_file(public, f"{line} root@{host}\n")
