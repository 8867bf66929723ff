"""The head's own files: read, and rewritten atomically only when a byte changes; its key pairs: found, or made by
ssh-keygen, of the private half fleet reads a digest alone."""

from __future__ import annotations

import base64
import os
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path

from fleet.errors import ConnectError, HostFailed
from fleet.node.base.files import open_regular
from fleet.node.base.record import whoami
from fleet.ops.setup_ssh.edits import PublicKey, parse_public_key
from fleet.own import foreign
from fleet.transport.ssh.keys import AGENT_HINT, Agent

WORK = ".fleet-new."  # what the names of files begin with that are being written


def read(path: Path) -> bytes | None:
    """The file's bytes, None when there is no such file."""
    try:
        with open_regular(str(path)) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostFailed(f"{path}: {error.strerror}") from error


def write(path: Path, data: bytes | None, *, mode: int = 0o600, follow: bool = True) -> bool:
    """Make `path` hold `data` (None: not exist). True when something was changed.

    A symlink keeps being one: its target is replaced; not `follow`: there is none but what another user puts there
    meanwhile. The file keeps its mode and owner, where that is the user. Written next to it, synced, renamed: never
    half there.
    """
    target = Path(os.path.realpath(path)) if follow else path
    try:
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
        try:
            with os.fdopen(fd, "wb") as out:
                out.write(data)
                out.flush()
                os.fchmod(fd, mode if before is None else before.st_mode & 0o7777)
                if before is not None and os.geteuid() == 0:
                    os.fchown(fd, before.st_uid, before.st_gid)
                os.fsync(fd)
            Path(temporary).rename(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise HostFailed(f"cannot write {path}: {error.strerror}") from error
    return True


def try_to_write(path: Path) -> None:
    """HostFailed where nothing could be put at `path`, as far as that shows before it is done."""
    there = Path(os.path.realpath(path)).parent
    while not there.exists():
        there = there.parent
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise HostFailed(f"cannot write {path}: {error.strerror}") from error


def make_private_dir(path: Path) -> bool:
    """Make sure the folder (and those above it) exists, 0700 when fleet makes it. True when it was made."""
    if path.is_dir():
        return False
    make_private_dir(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    return True


def open_mode(path: Path) -> tuple[int, int] | None:
    """(the mode that it has, the one that ssh takes) of a path that group or others may write to; None: it is fine."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    return (mode, mode & ~0o022) if mode & 0o022 else None


BITS = {"rsa": ("-b", "3072")}


def ensure_key(path: Path, key_type: str, seconds: float = 10.0) -> PublicKey:
    """The public half of the key pair at `path`, made when there is none (no passphrase, 0600).

    An existing one with a passphrase is fine when the agent holds it (and answers within `seconds`), else
    ConnectError(kind="auth").
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
    """Checks a private key as ssh does: a key that others can read is refused. Raises ConnectError. It changes nothing,
    as the path may be any file."""
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
    """The .pub file's line when it is this key's: its comment is the one the user chose."""
    data = read(path.with_name(path.name + ".pub")) or b""
    try:
        listed = parse_public_key(data)
    except HostFailed:
        return public
    return listed if listed.blob == public.blob else public


def _from_agent(path: Path, seconds: float) -> PublicKey:
    """The public half of a key that needs a passphrase, if the agent can use it."""
    data = read(path.with_name(path.name + ".pub"))
    if data is None:
        raise _unusable(path, "it has a passphrase, and there is no .pub beside it")
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
    """Remove a key pair that fleet made, if its public half still is "TYPE BLOB"; "": one that it was making when it
    was interrupted. True when it was removed."""
    done = _run("ssh-keygen", "-y", "-P", "", "-f", str(path)) if path.exists() else None
    if done is None or (public and done.stdout.split()[:2] != public.encode().split()):
        return False
    if not public and not (read(path.with_name(path.name + ".pub")) or b" fleet").rstrip().endswith(b" fleet"):
        return False
    path.unlink()
    path.with_name(path.name + ".pub").unlink(missing_ok=True)
    return True
