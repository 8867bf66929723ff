"""What setting up is given beside what every verb is: passwords, and whom to ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleet.model import Host
from fleet.ops.setup_ssh.passwords import Passwords
from fleet.runtime import Runtime
from fleet.transport.base import Transport
from fleet.transport.ssh.transport import SshTransport

if TYPE_CHECKING:
    from fleet.ops.setup_ssh.enrol import NewKey

Connect = Callable[[Callable[[Host], str | None] | None], Transport]
# is shown host keys, or names of hosts, and returns what the user says; None when there is nobody to ask
Confirm = Callable[[Sequence["NewKey"]], bool | None]
AskPassword = Callable[[Sequence[str]], str | None]


@dataclass
class SetupRuntime(Runtime):
    """connect: makes a transport that takes passwords. passwords: those that are known."""

    connect: Connect = lambda password_for: SshTransport(password_for=password_for)
    passwords: Passwords = field(default_factory=Passwords)
    confirm: Confirm = lambda keys: None
    ask_password: AskPassword = lambda hosts: None
