"""Who the hosts are and who may enter: host keys and root's password."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fleet.lab.require import which
from fleet.lab.switch import run


def make_host_keys(folder: Path, hosts: Sequence[str]) -> None:
    """An ed25519 host key for each host that has none; kept over down and up."""

    def make(host: str) -> None:
        home = folder / host
        if (home / "ssh_host_ed25519_key.pub").exists():
            return
        home.mkdir(mode=0o700, exist_ok=True)
        for half in home.iterdir():
            half.unlink()
        keygen = which("ssh-keygen") or "ssh-keygen"
        key = str(home / "ssh_host_ed25519_key")
        run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", f"root@{host}", "-f", key])

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(make, hosts))


def hash_password(password: str) -> str:
    """As /etc/shadow takes it: SHA-512 crypt, with few rounds as the password is random and 64 hosts check it."""
    for library in ("libcrypt.so.1", "libcrypt.so.2"):
        try:
            crypt = ctypes.CDLL(library).crypt
        except OSError:
            continue
        crypt.restype = ctypes.c_char_p
        hashed = crypt(password.encode(), f"$6$rounds=1000${secrets.token_hex(8)}$".encode())
        if hashed is not None:
            return str(hashed.decode())
    return run(["openssl", "passwd", "-6", "-stdin"], password).strip()
