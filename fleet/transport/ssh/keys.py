"""Orders the keys that are offered to a host: private key files with their certificates, then the ssh-agent's keys."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fleet import own
from fleet.errors import ConnectError
from fleet.transport.base import Once
from fleet.transport.ssh.adapter import agent_over
from fleet.transport.ssh.dial import Deadline
from fleet.transport.ssh.endpoint import Endpoint
from fleet.transport.ssh.library import paramiko

AGENT_HINT = "end that agent and start another, or do without: 'unset SSH_AUTH_SOCK'"


class Agent:
    """Queries an ssh-agent for its keys, once. address: the path of its socket; None stands for $SSH_AUTH_SOCK, "" for
    no agent. trouble: text about an agent that does not answer; None otherwise."""

    def __init__(self, address: str | None = None) -> None:
        self.address = os.environ.get("SSH_AUTH_SOCK", "") if address is None else address
        self.trouble: str | None = None
        self._seconds = 0.0
        self._conn: socket.socket | None = None
        self._keys: tuple[Any, ...] | None = None
        # the agent takes one request at a time, and the threads of many hosts sign with its keys
        self._lock = threading.Lock()

    def keys(self, seconds: float) -> tuple[Any, ...]:
        """Returns the agent's keys. Returns () without an agent, or if the agent does not answer within `seconds`."""
        with self._lock:
            if self._keys is None:
                self._seconds = seconds
                self._keys = self._ask() if self.address else ()
            return self._keys

    def _ask(self) -> tuple[Any, ...]:
        self._conn = conn = socket.socket(socket.AF_UNIX)
        try:
            conn.settimeout(self._seconds)
            conn.connect(self.address)
            return tuple(self._bounded(key) for key in agent_over(conn).get_keys())
        except (TimeoutError, BlockingIOError):  # it sends nothing, or accepts no connection
            self._hangs()
        except Exception:  # no process listens there, or it is no agent: paramiko's parser may raise any exception
            self.close()
        return ()

    def _bounded(self, key: Any) -> Any:
        plain = key.sign_ssh_data

        def sign(data: Any, algorithm: str | None = None) -> Any:
            with self._lock:
                if self._conn is None:
                    raise self.error()
                try:
                    return plain(data, algorithm)
                except TimeoutError:
                    self._hangs()
                    raise self.error() from None

        key.sign_ssh_data = sign
        return key

    def _hangs(self) -> None:
        self.trouble = f"the ssh-agent at {self.address} does not answer (waited {self._seconds:.1f} s)"
        self.close()

    def error(self) -> ConnectError:
        """Returns the error for an agent that hangs or is gone."""
        return ConnectError(self.trouble or f"the ssh-agent at {self.address} is gone", kind="auth", hint=AGENT_HINT)

    def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(OSError):  # wakes the thread that waits for a response
                conn.shutdown(socket.SHUT_RDWR)
            conn.close()


# sshd's MaxAuthTries is 6 by default; the last try is left for a password
MAX_KEYS = 5
PRIVATE_KEY_TYPES = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)
_MISSING = "there is no such file"
_LOCKED = "it has a passphrase (load it into ssh-agent: ssh-add)"
_UNKNOWN = "not a private key that fleet can read (ed25519, ecdsa or rsa)"


class Keyring:
    """Holds the private keys, whose files are read once for all hosts, and the agents."""

    def __init__(self) -> None:
        # a file that is missing now may exist when it is next requested
        self._keys: Once[tuple[Any, str]] = Once(lambda made: made.result()[1] != _MISSING)
        self._certificates: Once[Any] = Once()
        self._agents: Once[Agent] = Once()

    def agent(self, endpoint: Endpoint) -> Agent:
        """Returns the agent for this host. Hosts with the same agent share one connection."""
        address = endpoint.agent or ""
        return self._agents.get(address, lambda: Agent(address))

    def close(self) -> None:
        for agent in self._agents.all():
            agent.close()

    def offers(self, endpoint: Endpoint, notes: list[str], deadline: Deadline) -> Iterator[tuple[str, Any]]:
        """Yields (name for messages, key), best first, each key once. Adds remarks on unusable keys to `notes`. It
        queries the agent after the files, so an agent that hangs does not matter if a file's key is accepted."""
        offered: set[bytes] = set()
        for name, key in self._all(endpoint, notes, deadline):
            if key.asbytes() not in offered:
                offered.add(key.asbytes())
                yield name, key
            if len(offered) == MAX_KEYS:
                return

    def _all(self, endpoint: Endpoint, notes: list[str], deadline: Deadline) -> Iterator[tuple[str, Any]]:
        agent = self.agent(endpoint)
        # half of the time: a password may have to be tried after the agent
        patience = max(0.1, deadline.left() / 2)
        any_file = False
        for file in endpoint.certificates:
            if self._certificates.get(file, partial(_certificate, file)) is None:
                notes.append(f"{file}: not a certificate that can be read")
        for file in endpoint.identity_files:
            key, why = self._keys.get(file, partial(_load, file))
            name = file.name
            if key is None and why:
                key, name = self._held_by_agent(file, agent, patience), f"{file.name} (agent)"
            if key is not None:
                any_file = True
                yield from self._certified(key, (*endpoint.certificates, Path(f"{file}-cert.pub")))
                yield name, key
            elif why and (endpoint.explicit_identities or file.exists()):
                notes.append(f"{file}: {why}")
        if not endpoint.identities_only and not (any_file and endpoint.explicit_identities):
            for key in agent.keys(patience):
                yield from self._certified(key, endpoint.certificates)
                yield f"agent's {key.comment or key.get_name()}", key
        if agent.trouble:
            notes.append(agent.trouble)

    def _certified(self, key: Any, files: tuple[Path, ...]) -> Iterator[tuple[str, Any]]:
        """Yields the key with each of its certificates."""
        kind = len(paramiko.Message(key.asbytes()).get_binary()) + 4
        for file in files:
            certificate = self._certificates.get(file, partial(_certificate, file))
            if certificate is not None:
                fields = paramiko.Message(certificate.key_blob)
                fields.get_binary(), fields.get_binary()  # skips the type and the nonce; the key follows
                if fields.get_remainder().startswith(key.asbytes()[kind:]):
                    yield file.name, CertifiedKey(key, certificate)

    def _held_by_agent(self, file: Path, agent: Agent, patience: float) -> Any:
        """Returns the agent's copy of a key whose file is encrypted or is the public half only."""
        public = file if file.suffix == ".pub" else Path(f"{file}.pub")
        try:
            blob = paramiko.PublicBlob.from_file(str(public)).key_blob
        except (OSError, ValueError, IndexError):
            return None
        return next((key for key in agent.keys(patience) if key.asbytes() == blob), None)


class CertifiedKey:
    """Offers a key with a certificate for it."""

    def __init__(self, key: Any, certificate: Any) -> None:
        self.key, self.public_blob = key, certificate

    def asbytes(self) -> bytes:
        blob: bytes = self.public_blob.key_blob
        return blob

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> Any:
        return self.key.sign_ssh_data(data, algorithm and algorithm.replace("-cert-v01@openssh.com", ""))


def _certificate(file: Path) -> Any:
    """Returns the certificate in a file; None if the file holds no certificate."""
    try:
        found = paramiko.PublicBlob.from_file(str(file))
    except Exception:  # paramiko's parser may raise any exception
        return None
    return found if found.key_type.endswith("-cert-v01@openssh.com") else None


def _load(file: Path) -> tuple[Any, str]:
    """Returns (key, ""), or (None, the reason why the key cannot be used)."""
    try:
        text, info = own.read_given(file).decode("utf-8", "replace"), file.stat()
        if info.st_mode & 0o077 and info.st_uid == os.getuid() and "PRIVATE KEY-----" in text:
            return None, f"others can read it, so ssh would not use it: chmod 600 {shlex.quote(str(file))}"
        if "-----BEGIN ENCRYPTED PRIVATE KEY-----" in text:
            return None, _LOCKED
        if "-----BEGIN PRIVATE KEY-----" in text:
            text = _from_pkcs8(text)
    except FileNotFoundError:
        return None, _MISSING
    except OSError as error:
        return None, error.strerror or "cannot be read"
    except Exception:  # the key is damaged, or of a kind that SSH does not know
        return None, _UNKNOWN
    why = _UNKNOWN
    for kind in PRIVATE_KEY_TYPES:
        try:
            return kind(file_obj=io.StringIO(text)), ""
        except paramiko.PasswordRequiredException:
            return None, _LOCKED
        except Exception as error:  # paramiko's parsers may raise any exception
            if kind is PRIVATE_KEY_TYPES[-1] and isinstance(error, AssertionError):
                why = "a damaged private key"
    return None, why


def _from_pkcs8(text: str) -> str:
    """Converts a key of OpenSSL's form to OpenSSH's, as paramiko reads no other."""
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(text.encode(), None)
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()).decode()
