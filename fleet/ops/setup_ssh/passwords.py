"""Reads passwords from a file or the terminal. Each is tried at most once on a host, and none is stored. Defines the
Runtime of setup-ssh, which holds the passwords."""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet import own
from fleet.errors import UsageError
from fleet.inventory.nodeset import expand
from fleet.model import Host
from fleet.runtime import Runtime
from fleet.transport.base import Transport
from fleet.transport.ssh.hostkeys import HostKey
from fleet.transport.ssh.transport import SshTransport

FORMAT_HINT = "one line: the password for all hosts; or lines 'HOST PASSWORD', HOST a host, a node set or *"


class Passwords:
    """Returns each host's password once. A wrong password is not tried again, because sshd counts failures and may lock
    the account."""

    def __init__(self, by_host: Mapping[str, str] | None = None, *, default: str | None = None) -> None:
        self._by_host = dict(by_host or {})
        self.default = default
        self._used: set[str] = set()
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        return name in self._by_host or self.default is not None

    def take(self, host: Host) -> str | None:
        """Returns the password for this host. Returns None if there is none, or if the host did not accept it
        before."""
        with self._lock:
            if host.name in self._used:
                return None
            password = self._by_host.get(host.name, self.default)
            if password is not None:
                self._used.add(host.name)
            return password

    def accepted(self, name: str) -> None:
        """Notes that the host accepted its password, so that take() returns it again."""
        with self._lock:
            self._used.discard(name)

    def used(self, name: str) -> bool:
        return name in self._used

    def __repr__(self) -> str:
        return "Passwords(***)"


def read_password_file(path: str, names: Sequence[str]) -> Passwords:
    """Reads passwords from a file that no other user can read; "-" is stdin. names: the inventory's hosts.

    Raises UsageError with the number of a bad line, never with its text.
    """
    try:
        if path == "-":
            return parse(sys.stdin.read(), names, "<stdin>")
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                raise UsageError(
                    f"others can read the password file {path} (mode {mode & 0o777:04o})", hint=f"chmod 600 {path}"
                )
            return parse(own.bounded(file).decode(), names, path)
    except UnicodeDecodeError:
        raise UsageError(f"the password file {path} is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"cannot read the password file {path}: {error.strerror}") from error


def parse(text: str, names: Sequence[str], where: str) -> Passwords:
    """Parses the two forms of FORMAT_HINT. Blank lines are ignored. In the second form, lines that begin with '#' are
    ignored, too.

    A single line is of the second form only if its first token names hosts of this inventory.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    lines = [(number, line.rstrip("\r")) for number, line in lines]
    if not lines:
        raise UsageError(f"the password file {where} is empty", hint=FORMAT_HINT)
    if len(lines) == 1 and _split(lines[0][1], names) is None:
        return Passwords(default=lines[0][1])
    by_host: dict[str, str] = {}
    default: str | None = None
    for number, line in lines:
        if line.lstrip().startswith("#"):
            continue
        entry = _split(line, names)
        if entry is None:
            raise UsageError(
                "does not begin with a host of the inventory and its password",
                where=f"{where}:{number}",
                hint=FORMAT_HINT,
            )
        hosts, password = entry
        if hosts is None:
            default = password
            continue
        again = next((name for name in hosts if name in by_host), None)
        if again:
            raise UsageError(f"a second password for {again}", where=f"{where}:{number}", hint=FORMAT_HINT)
        by_host.update(dict.fromkeys(hosts, password))
    return Passwords(by_host, default=default)


def _split(line: str, names: Sequence[str]) -> tuple[list[str] | None, str] | None:
    """Returns (hosts or None for all, password) of a line "HOST PASSWORD" or "HOST: PASSWORD". Returns None for another
    line."""
    found = re.match(r"\s*(\S+?):?[ \t]+(\S.*)$", line)
    if not found:
        return None
    operand, password = found.groups()
    if operand == "*":
        return None, password
    try:
        hosts = list(expand(operand))
    except Exception:
        return None
    return (hosts, password) if hosts and set(hosts) <= set(names) else None


def ask_once(passwords: Passwords, hosts: Sequence[str], ask: Callable[[Sequence[str]], str | None]) -> bool:
    """Asks the user for the password of these hosts unless it is known. Returns False if no user responded."""
    missing = [name for name in hosts if not passwords.has(name)]
    if missing:
        passwords.default = ask(missing)
    return not missing or passwords.default is not None


Connect = Callable[[Callable[[Host], str | None] | None], Transport]


@dataclass(frozen=True)
class NewKey:
    """Holds a host key that is not confirmed yet. old: fingerprints on file that it would replace."""

    host: str
    target: str
    key: HostKey
    old: tuple[str, ...] = ()


# each returns the user's answer, or None if there is no user to ask
Confirm = Callable[[Sequence[NewKey]], bool | None]
AskPassword = Callable[[Sequence[str]], str | None]


@dataclass
class SetupRuntime(Runtime):
    """Extends Runtime for setup-ssh. connect: makes a transport that uses passwords. passwords: the known ones.
    confirm: asks the user to confirm host keys. ask_password: asks the user for the password of hosts."""

    connect: Connect = lambda password_for: SshTransport(password_for=password_for)
    passwords: Passwords = field(default_factory=Passwords)
    confirm: Confirm = lambda keys: None
    ask_password: AskPassword = lambda hosts: None
