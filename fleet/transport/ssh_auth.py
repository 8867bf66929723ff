"""Authentication, in one plan: the configured keys, then the agent's, then at most one password. No retries.

sshd counts failures (MaxAuthTries in a connection, PerSourcePenalties over connections), so nothing is probed
and nothing is offered twice.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from fleet.errors import ConnectError, FleetError
from fleet.transport.ssh_dial import Deadline
from fleet.transport.ssh_endpoint import Endpoint
from fleet.transport.ssh_link import Link
from fleet.transport.ssh_wire import Message, paramiko

# sshd's MaxAuthTries is 6 by default; the last one is left for a password
MAX_KEYS = 5
PRIVATE_KEY_TYPES = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)


class Keyring:
    """Private keys, each file read once however many hosts use it, and the agent's keys, asked for once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, tuple[Any, str]] = {}
        self._agent: Any = None
        self._agent_keys: tuple[Any, ...] | None = None
        self._signing = threading.Lock()

    def load(self, file: Path) -> tuple[Any, str]:
        """(key, "") or (None, why it cannot be used)."""
        with self._lock:
            if file not in self._files:
                self._files[file] = _load(file)
            return self._files[file]

    def agent_keys(self) -> tuple[Any, ...]:
        """Keys of the agent at SSH_AUTH_SOCK; none when there is none."""
        with self._lock:
            if self._agent_keys is None:
                self._agent_keys = ()
                if os.environ.get("SSH_AUTH_SOCK"):
                    with contextlib.suppress(paramiko.SSHException, OSError):
                        self._agent = paramiko.Agent()
                        self._agent_keys = tuple(self._one_at_a_time(key) for key in self._agent.get_keys())
            return self._agent_keys

    def _one_at_a_time(self, key: Any) -> Any:
        """The agent answers one question at a time, and many hosts' threads sign with its keys."""
        plain = key.sign_ssh_data

        def sign(data: Any, algorithm: str | None = None) -> Any:
            with self._signing:
                return plain(data, algorithm)

        key.sign_ssh_data = sign
        return key

    def close(self) -> None:
        """Let go of the agent."""
        with self._lock:
            if self._agent is not None:
                self._agent.close()
            self._agent = self._agent_keys = None

    def plan(self, endpoint: Endpoint) -> tuple[list[tuple[str, Any]], list[str]]:
        """[(what to call it, key)], best first, and notes about keys that cannot be used."""
        plan: list[tuple[str, Any]] = []
        notes: list[str] = []
        for file in endpoint.identity_files:
            key, why = self.load(file)
            if key is not None:
                plan.append((file.name, key))
                continue
            from_agent = self._held_by_agent(file) if why else None
            if from_agent is not None:
                plan.append((f"{file.name} (agent)", from_agent))
            elif why and (endpoint.explicit_identities or file.exists()):
                notes.append(f"{file}: {why}")
        if not endpoint.identities_only and not (plan and endpoint.explicit_identities):
            plan += [(f"agent's {key.comment or key.get_name()}", key) for key in self.agent_keys()]
        unique: dict[bytes, tuple[str, Any]] = {}
        for name, key in plan:
            unique.setdefault(key.asbytes(), (name, key))
        return list(unique.values())[:MAX_KEYS], notes

    def _held_by_agent(self, file: Path) -> Any:
        """The agent's copy of a key whose file is encrypted, or of which only the public half is here."""
        public = file if file.suffix == ".pub" else Path(f"{file}.pub")
        try:
            blob = paramiko.PublicBlob.from_file(str(public)).key_blob
        except (OSError, ValueError, IndexError):
            return None
        return next((key for key in self.agent_keys() if key.asbytes() == blob), None)


def _load(file: Path) -> tuple[Any, str]:
    why = "not a private key that fleet can read (ed25519, ecdsa or rsa)"
    if not file.exists():
        return None, "there is no such file"
    for kind in PRIVATE_KEY_TYPES:
        try:
            return kind(filename=str(file)), ""
        except paramiko.PasswordRequiredException:
            return None, "it has a passphrase (load it into ssh-agent: ssh-add)"
        except OSError as error:
            return None, error.strerror or "cannot be read"
        except Exception as error:  # paramiko raises what its parsers happen to trip over
            if kind is PRIVATE_KEY_TYPES[-1] and isinstance(error, AssertionError):
                why = "a damaged private key"
    return None, why


class _Auth(paramiko.AuthHandler):  # type: ignore[misc]
    """Remembers which methods the server allows, which paramiko drops."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.allowed: list[str] | None = None
        self.partial = False

    def _parse_userauth_failure(self, m: Message) -> None:
        self.allowed = m.get_list()
        self.partial = m.get_boolean()
        m.rewind()
        super()._parse_userauth_failure(m)


def authenticate(
    link: Link, endpoint: Endpoint, keyring: Keyring, password: str | None, deadline: Deadline
) -> None:
    """Authenticate `link` as endpoint.user. ConnectError: auth (what was tried, what is allowed), timeout, lost."""
    tried: list[str] = []
    allowed: list[str] | None = None
    partial = False

    def attempt(method: str, *args: Any) -> bool:
        nonlocal allowed, partial
        event = threading.Event()
        handler = _Auth(link)
        link.auth_handler = handler
        try:
            getattr(handler, f"auth_{method}")(endpoint.user, *args, event)
        except (EOFError, OSError) as lost:
            raise link.failure(True, deadline.seconds, "authentication") from lost
        in_time = deadline.wait(event)
        if link.is_authenticated():
            return True
        error = link.saved_exception
        link.saved_exception = None
        if handler.allowed is not None:
            allowed, partial = handler.allowed, handler.partial
        if not in_time:
            raise link.failure(False, deadline.seconds, "authentication")
        if not link.is_active():
            link.saved_exception = error
            if tried:
                raise _refused(endpoint, tried, allowed, False, notes + [_reason(error)], password is not None)
            raise link.failure(True, deadline.seconds, "authentication")
        return False

    keys, notes = keyring.plan(endpoint)
    for name, key in keys:
        if allowed is not None and "publickey" not in allowed:
            break
        tried.append(f"publickey ({name})")
        if attempt("publickey", key):
            return
    if not keys and password is None and attempt("none"):
        return
    if password is not None:
        if (allowed is None or "password" in allowed) and _password(attempt, password, tried):
            return
        # a server that asks interactively has not been told the password yet
        if (allowed is not None and "password" not in allowed and "keyboard-interactive" in allowed
                and _interactive(attempt, password, tried)):
            return
    raise _refused(endpoint, tried, allowed, partial, notes, password is not None)


def _password(attempt: Any, password: str, tried: list[str]) -> bool:
    tried.append("password")
    return bool(attempt("password", password))


def _interactive(attempt: Any, password: str, tried: list[str]) -> bool:
    if "password" in tried:
        tried.remove("password")
    tried.append("keyboard-interactive")
    answers = [password]

    def answer(title: str, instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:
        # the password once, for a prompt that hides what is typed; nothing for anything else
        return [answers.pop() if answers and not echo else "" for _, echo in prompts]

    return bool(attempt("interactive", answer))


def _reason(error: BaseException | None) -> str:
    return str(error) if error is not None and str(error) else "it closed the connection"


def _refused(
    endpoint: Endpoint, tried: list[str], allowed: list[str] | None, partial: bool, notes: list[str], password: bool
) -> FleetError:
    said = f"; the host allows {', '.join(allowed)}" if allowed else ""
    also = f" ({'; '.join(notes)})" if notes else ""
    what = f"tried {', '.join(tried)}" if tried else "there is no key to offer"
    message = f"not authenticated as {endpoint.user}: {what}{said}{also}"
    if partial:
        return ConnectError(f"{message}; it asks for a second factor", kind="auth",
                            hint="fleet needs a login by key alone")
    if password:
        hint = "is it this user's password, and may this user log in by it? it was tried once and is not repeated"
    elif any(t.startswith("publickey") for t in tried) or not tried:
        hint = "fleet setup-ssh installs a key there; is the user right?"
    else:
        hint = "fleet setup-ssh"
    return ConnectError(message, kind="auth", hint=hint)
