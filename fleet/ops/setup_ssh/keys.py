"""The head's own key pairs: found, or made by ssh-keygen; the private half is never read by fleet."""

from __future__ import annotations

import base64
import getpass
import os
import shlex
import socket
import subprocess
from pathlib import Path

from fleet.errors import ConnectError, HostFailed
from fleet.ops.setup_ssh import files
from fleet.ops.setup_ssh.edits import PublicKey, parse_public_key
from fleet.transport.ssh.keys import AGENT_HINT, Agent

BITS = {"rsa": ("-b", "3072")}


def ensure(path: Path, key_type: str, seconds: float = 10.0) -> PublicKey:
    """The public half of the key pair at `path`, made when there is none (no passphrase, 0600).

    An existing one with a passphrase is fine when the agent holds it (and says so within `seconds`), else
    ConnectError(kind="auth").
    """
    if not path.exists():
        return _create(path, key_type)
    check_private(path)
    done = _run("ssh-keygen", "-y", "-P", "", "-f", str(path))
    if done.returncode == 0:
        return _with_comment(path, parse_public_key(done.stdout.strip()))
    return _from_agent(path, done.stderr.decode("utf-8", "replace").strip(), seconds)


def check_private(path: Path) -> None:
    """As ssh: a key that others can read is one no more. ConnectError; nothing is changed, it may be any file."""
    info = path.stat()
    if info.st_mode & 0o077 and info.st_uid == os.getuid():
        raise ConnectError(
            f"others can read the key {path} (mode {info.st_mode & 0o777:o})",
            kind="auth",
            hint=f"if it is your private key: chmod 600 {shlex.quote(str(path))}",
        )


def _create(path: Path, key_type: str) -> PublicKey:
    files.make_private_dir(path.parent)
    public = path.with_name(path.name + ".pub")
    if public.exists():
        raise HostFailed(
            f"{public} is there, but not its private key {path}",
            hint="move it away, or name another key with --key-type or identity_file",
        )
    comment = f"{_user()}@{socket.gethostname()} fleet"
    done = _run("ssh-keygen", "-q", "-t", key_type, *BITS.get(key_type, ()), "-N", "", "-C", comment, "-f", str(path))
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or done.stdout.decode("utf-8", "replace").strip()
        raise HostFailed(f"ssh-keygen could not make {path}: {said}")
    return parse_public_key(public.read_bytes())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _with_comment(path: Path, public: PublicKey) -> PublicKey:
    """The .pub file's line when it is this key's: its comment is the one the user chose."""
    said = files.read(path.with_name(path.name + ".pub")) or b""
    try:
        listed = parse_public_key(said)
    except HostFailed:
        return public
    return listed if listed.blob == public.blob else public


def _from_agent(path: Path, reason: str, seconds: float) -> PublicKey:
    """The public half of a key that needs a passphrase, if the agent can use it."""
    said = files.read(path.with_name(path.name + ".pub"))
    if "passphrase" not in reason or said is None:
        raise ConnectError(
            f"the key {path} cannot be used: {reason}",
            kind="auth",
            hint="repair it, or name another with identity_file in the inventory",
        )
    public = parse_public_key(said)
    agent = Agent()
    if public.blob not in (base64.b64encode(key.asbytes()) for key in agent.keys(seconds)):
        if agent.trouble:
            raise ConnectError(f"the key {path} has a passphrase, and {agent.trouble}", kind="auth", hint=AGENT_HINT)
        raise ConnectError(
            f"the key {path} has a passphrase and no agent holds it",
            kind="auth",
            hint=f"ssh-add {path}, or name a key without one with identity_file in the inventory",
        )
    agent.close()
    return public


def _run(*argv: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, umask=0o077)
    except FileNotFoundError:
        raise HostFailed(
            f"{argv[0]} is not installed on this machine",
            hint="install OpenSSH's client, openssh-client or openssh-clients",
        ) from None
    except subprocess.TimeoutExpired:
        raise HostFailed(f"{argv[0]} did not end") from None


def discard(path: Path, public: str) -> bool:
    """Remove a key pair that fleet made, if its public half still is "TYPE BLOB". True when it was removed."""
    done = _run("ssh-keygen", "-y", "-P", "", "-f", str(path)) if path.exists() else None
    if done is None or done.stdout.split()[:2] != public.encode().split():
        return False
    path.unlink()
    path.with_name(path.name + ".pub").unlink(missing_ok=True)
    return True
