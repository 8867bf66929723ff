"""Authenticates with the configured keys, then with the agent's keys, then with at most one password. Nothing is tried
twice.

sshd counts failures (MaxAuthTries in a connection, PerSourcePenalties over connections). If sshd drops the connection
before the password could be tried, fleet tries the password on one more connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fleet.errors import ConnectError, FleetError
from fleet.transport.ssh.adapter import Auth
from fleet.transport.ssh.dial import Deadline
from fleet.transport.ssh.endpoint import Endpoint
from fleet.transport.ssh.keys import AGENT_HINT, Keyring
from fleet.transport.ssh.link import Link


class TriesUsedUp(ConnectError):
    """Reports that the server ended the connection after some keys, before the password could be tried."""


def authenticate(
    link: Link, endpoint: Endpoint, keyring: Keyring, password: str | None, deadline: Deadline, *, keys: bool = True
) -> None:
    """Authenticates `link` as endpoint.user. With `keys` false, only the password is tried. Raises ConnectError (auth,
    timeout, lost) and TriesUsedUp."""
    tried: list[str] = []
    notes: list[str] = []
    allowed: list[str] | None = None
    partial = False
    agent = keyring.agent(endpoint)

    def attempt(method: str, *args: Any) -> bool:
        nonlocal allowed, partial
        event = threading.Event()
        handler = Auth(link)
        link.auth_handler = handler
        try:
            getattr(handler, f"auth_{method}")(endpoint.user, *args, event)
        except (EOFError, OSError) as lost:
            raise link.failure(True, deadline.seconds, "authentication") from lost
        in_time = deadline.wait(event)
        if link.is_authenticated():
            link.method = method
            return True
        error = link.saved_exception
        link.saved_exception = None
        if handler.allowed is not None:
            allowed, partial = handler.allowed, handler.partial
        if not in_time:
            raise link.failure(False, deadline.seconds, "authentication")
        if not link.is_active():
            link.saved_exception = error
            if isinstance(error, FleetError) or not tried:
                raise link.failure(True, deadline.seconds, "authentication")
            raise _dropped(endpoint, tried, notes, link.goodbye, password if method == "publickey" else None)
        return False

    for name, key in keyring.offers(endpoint, notes, deadline) if keys else ():
        if allowed is not None and "publickey" not in allowed:
            break
        tried.append(f"publickey ({name})")
        if attempt("publickey", key):
            return
    if not tried and password is None and attempt("none"):
        return
    if password is not None and (allowed is None or "password" in allowed):
        tried.append("password")
        if attempt("password", password):
            return
    # a server that allows keyboard-interactive, but not "password", has not received the password yet
    if (
        password is not None
        and "password" not in (allowed or ["password"])
        and "keyboard-interactive" in (allowed or ())
    ):
        tried[:] = [*(way for way in tried if way != "password"), "keyboard-interactive"]
        if attempt("interactive", _answering(password)):
            return
    error = _refused(endpoint, tried, allowed, partial, notes, password is not None)
    error.hint = AGENT_HINT if agent.trouble else error.hint
    raise error


def _answering(password: str) -> Callable[[str, str, list[tuple[str, bool]]], list[str]]:
    """Returns a handler of prompts. The handler gives the password once, for a prompt that hides the input, and "" for
    any other prompt."""
    answers = [password]
    return lambda title, instructions, prompts: [answers.pop() if answers and not echo else "" for _, echo in prompts]


def _dropped(
    endpoint: Endpoint, tried: list[str], notes: list[str], goodbye: str, password: str | None
) -> ConnectError:
    """Returns the error for a server that closed the connection, with its message `goodbye`. password: None if it was
    tried already."""
    reasons = "; ".join([goodbye or "it closed the connection", *notes])
    message = f"not authenticated as {endpoint.user}: tried {', '.join(tried)} ({reasons})"
    if "uthentication failures" not in goodbye and len(tried) > 1:
        hint = "the host's sshd log says why (journalctl -u ssh)"
    else:
        hint = (
            "name the right key first: identity_file in the inventory, IdentityFile in ~/.ssh/config; or let it "
            "have more tries: 'MaxAuthTries 6' in its sshd_config"
        )
    kind = ConnectError if password is None else TriesUsedUp
    return kind(message, kind="auth", hint=hint)


def _refused(
    endpoint: Endpoint, tried: list[str], allowed: list[str] | None, partial: bool, notes: list[str], password: bool
) -> ConnectError:
    suffix = f"; the host allows {', '.join(allowed)}" if allowed else ""
    also = f" ({'; '.join(notes)})" if notes else ""
    what = f"tried {', '.join(tried)}" if tried else "there is no key to offer"
    message = f"not authenticated as {endpoint.user}: {what}{suffix}{also}"
    if partial:
        return ConnectError(
            f"{message}; it asks for a second factor", kind="auth", hint="fleet needs a login by key alone"
        )
    if password:
        hint = "is it this user's password, and may this user log in by it? it was tried once and is not repeated"
    elif any(t.startswith("publickey") for t in tried) or not tried:
        hint = "'fleet setup-ssh' installs a key there; is the user right?"
    else:
        hint = "fleet setup-ssh"
    return ConnectError(message, kind="auth", hint=hint)
