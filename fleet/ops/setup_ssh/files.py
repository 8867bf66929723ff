"""Reads and writes the head's files. A write is atomic, and is made only if a byte changes. Finds the head's key pairs,
or makes them with ssh-keygen."""

from __future__ import annotations

import base64
import os
import shlex
import stat
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from fleet.errors import ConnectError, HostFailed
from fleet.node.base.errors import on_failure, on_os_error
from fleet.node.base.files import open_regular
from fleet.node.base.record import whoami
from fleet.ops.setup_ssh.edits import PublicKey, parse_public_key
from fleet.own import foreign
from fleet.transport.ssh.keys import AGENT_HINT, Agent

WORK = ".fleet-new."  # prefix of files that are being written


def read(path: Path) -> bytes | None:
    """Returns the file's bytes, or None if there is no such file."""
    try:
        with open_regular(str(path)) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostFailed(f"{path}: {error.strerror}") from error


def write(path: Path, data: bytes | None, *, mode: int = 0o600, follow: bool = True) -> bool:
    """Writes `data` to `path`, atomically. data None: removes the file. Returns True if something was changed.

    The file keeps its mode, and its owner if that is the user. follow True: replaces the target of a symlink. follow
    False: replaces the symlink itself, because only another user can have made it.
    """
    target = Path(os.path.realpath(path)) if follow else path
    with on_os_error(HostFailed, f"cannot write {path}"):
        if data is None:
            path.unlink(missing_ok=True)
            return True
        if read(target) == data:
            return False
        make_private_dir(target.parent)
        before = target.lstat() if os.path.lexists(target) else None
        if before and foreign(target, before):
            before = None
        fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=WORK)
        with on_failure(partial(Path(temporary).unlink, missing_ok=True)):
            with os.fdopen(fd, "wb") as out:
                out.write(data)
                out.flush()
                os.fchmod(fd, mode if before is None else before.st_mode & 0o7777)
                if before is not None and os.geteuid() == 0:
                    os.fchown(fd, before.st_uid, before.st_gid)
                os.fsync(fd)
            Path(temporary).rename(target)
    return True


def try_to_write(path: Path) -> None:
    """Raises HostFailed if no file can be made in the folder of `path`."""
    there = Path(os.path.realpath(path)).parent
    while not there.exists():
        there = there.parent
    with on_os_error(HostFailed, f"cannot write {path}"):
        tempfile.TemporaryFile(dir=there).close()


def make_private_dir(path: Path) -> bool:
    """Makes the folder and its missing parents with mode 0700. Returns True if the folder was missing."""
    if path.is_dir():
        return False
    make_private_dir(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    return True


def open_mode(path: Path) -> tuple[int, int] | None:
    """Returns (present mode, mode that ssh accepts) of a path to which group or others may write; None for other
    paths."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    return (mode, mode & ~0o022) if mode & 0o022 else None


BITS = {"rsa": ("-b", "3072")}


def ensure_key(path: Path, key_type: str, seconds: float = 10.0) -> PublicKey:
    """Returns the public half of the key pair at `path`. Makes a pair without passphrase if there is none.

    A key with a passphrase must be in the agent, which has `seconds` to respond. Raises ConnectError(kind="auth").
    """
    if not path.exists():
        return _create(path, key_type)
    check_private(path)
    done = _run("ssh-keygen", "-y", "-P", "", "-f", str(path))
    if done.returncode == 0:
        return _with_comment(path, parse_public_key(done.stdout.strip()))
    reason = done.stderr.decode("utf-8", "replace").strip()
    if "passphrase" in reason:
        return _from_agent(path, seconds)
    raise _unusable(path, reason)


def _unusable(path: Path, reason: str) -> ConnectError:
    return ConnectError(
        f"the key {path} cannot be used: {reason}",
        kind="auth",
        hint="repair it, or name another with identity_file in the inventory",
    )


def check_private(path: Path) -> None:
    """Raises ConnectError for a private key that others can read, because ssh refuses such a key. Does not change the
    mode, because the path may be any file."""
    info = path.stat()
    if info.st_mode & 0o077 and info.st_uid == os.getuid():
        raise ConnectError(
            f"others can read the key {path} (mode {info.st_mode & 0o777:o})",
            kind="auth",
            hint=f"if it is your private key: chmod 600 {shlex.quote(str(path))}",
        )


def _create(path: Path, key_type: str) -> PublicKey:
    make_private_dir(path.parent)
    public = path.with_name(path.name + ".pub")
    if public.exists():
        raise HostFailed(
            f"{public} is there, but not its private key {path}",
            hint="move it away, or name another key with --key-type or identity_file",
        )
    comment = f"{whoami()} fleet"
    done = _run("ssh-keygen", "-q", "-t", key_type, *BITS.get(key_type, ()), "-N", "", "-C", comment, "-f", str(path))
    if done.returncode != 0:
        output = done.stderr.decode("utf-8", "replace").strip() or done.stdout.decode("utf-8", "replace").strip()
        raise HostFailed(f"ssh-keygen could not make {path}: {output}")
    return parse_public_key(public.read_bytes())


def _with_comment(path: Path, public: PublicKey) -> PublicKey:
    """Returns the key with the comment of its .pub file, if the .pub file holds the same key."""
    data = read(path.with_name(path.name + ".pub")) or b""
    try:
        listed = parse_public_key(data)
    except HostFailed:
        return public
    return listed if listed.blob == public.blob else public


def _from_agent(path: Path, seconds: float) -> PublicKey:
    """Returns the public half of a key with a passphrase. Raises ConnectError if the agent does not hold the key."""
    data = read(path.with_name(path.name + ".pub"))
    if data is None:
        raise _unusable(path, "it has a passphrase, and there is no .pub next to it")
    public = parse_public_key(data)
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


def discard_key(path: Path, public: str) -> bool:
    """Removes a key pair that fleet made, if its public half is still `public` ("TYPE BLOB"). public "": fleet was
    interrupted when it made the pair. Returns True if the pair was removed."""
    done = _run("ssh-keygen", "-y", "-P", "", "-f", str(path)) if path.exists() else None
    if done is None or (public and done.stdout.split()[:2] != public.encode().split()):
        return False
    if not public and not (read(path.with_name(path.name + ".pub")) or b" fleet").rstrip().endswith(b" fleet"):
        return False
    path.unlink()
    path.with_name(path.name + ".pub").unlink(missing_ok=True)
    return True
