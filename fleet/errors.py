"""The exception tree.

Every error a user can cause is a FleetError: it has the exit code with which the command ends, a stable `kind` for
--json, and where possible a hint that names the next step. Only cli/main.py prints these errors.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fleet.protocol.codes import EXIT_CONNECT as EXIT_CONNECT
from fleet.protocol.codes import EXIT_HOST_FAILED as EXIT_HOST_FAILED
from fleet.protocol.codes import EXIT_INTERNAL as EXIT_INTERNAL
from fleet.protocol.codes import EXIT_INTERRUPTED as EXIT_INTERRUPTED
from fleet.protocol.codes import EXIT_INVENTORY as EXIT_INVENTORY
from fleet.protocol.codes import EXIT_OK as EXIT_OK
from fleet.protocol.codes import EXIT_PIPE as EXIT_PIPE
from fleet.protocol.codes import EXIT_PREFLIGHT as EXIT_PREFLIGHT
from fleet.protocol.codes import EXIT_TIMEOUT as EXIT_TIMEOUT
from fleet.protocol.codes import EXIT_USAGE as EXIT_USAGE


class Reason(str):
    """A text that knows its cause. template: the text with {name} for each part that differs from host to host.
    details: these parts, by name. rules/causes.py reports hosts with an equal template together."""

    template: str
    details: Mapping[str, str]

    def __new__(cls, template: str, **details: object) -> Reason:
        texts = {name: str(value) for name, value in details.items()}
        made = super().__new__(cls, fill(template, texts))
        made.template, made.details = template, texts
        return made

    def __add__(self, more: str) -> Reason:
        if not isinstance(more, Reason):
            return Reason(self.template + more, **self.details)
        names: dict[str, str] = {}  # the reasons of two gateways in a row have details of the same name
        for name in more.details:
            names[name] = name
            while names[name] in self.details or (names[name] != name and names[name] in more.details):
                names[name] += "_"
        template = fill(more.template, {name: f"{{{other}}}" for name, other in names.items()})
        return Reason(
            self.template + template, **self.details, **{names[name]: text for name, text in more.details.items()}
        )

    @classmethod
    def of_node(cls, text: str) -> Reason:
        """Returns the reason that a node reported: the numbers in it (process ids, bytes) are its details."""
        details: dict[str, str] = {}
        prefix = "n"
        while f"{{{prefix}" in text:
            prefix += "n"

        def name(match: re.Match[str]) -> str:
            details[known := f"{prefix}{len(details)}"] = match[0]
            return f"{{{known}}}"

        return cls(_NUMBERS.sub(name, text), **details)


# numbers that are whole tokens, one or a list of them: not a part of a name, a path, an address or a version
_NUMBER = r"(?<![\w./:-])[0-9]+(?:\.[0-9]+)?(?![\w/-]|[.:]\w)"
_NUMBERS = re.compile(f"{_NUMBER}(?:, {_NUMBER})*")


def fill(template: str, details: Mapping[str, str]) -> str:
    """Returns the template with its details filled in. Braces in the details are not filled in again."""
    return re.sub(r"\{(\w+)\}", lambda match: details.get(match[1], match[0]), template)


class FleetError(Exception):
    """Base of all errors fleet raises on purpose.

    message: what went wrong, one line; a Reason if parts of it differ from host to host. where: "FILE:LINE" or
    None. host: the inventory name or None. hint: the next step, one line, or None. kind: a stable name for JSON.
    hosts: for a verb that was refused as a whole: host -> its error, None if the host was fit.
    """

    exit_code: ClassVar[int] = EXIT_INTERNAL
    kind: str = "internal"
    hosts: Mapping[str, FleetError | None] = {}

    def __init_subclass__(cls, exit_code: int | None = None, kind: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.exit_code, cls.kind = exit_code or cls.exit_code, kind or cls.kind

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        host: str | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.host = host
        if kind is not None:
            self.kind = kind

    def __str__(self) -> str:
        parts = [self.where] if self.where else []
        if self.host:
            parts.append(f"host {self.host}")
        return ": ".join([*parts, self.message])

    def but(self, **changes: Any) -> FleetError:
        """Returns a copy of the error with some attributes changed."""
        other = copy.copy(self)
        other.__dict__.update(changes)
        return other

    @property
    def reason(self) -> str:
        """Returns the message that is printed after the host's name."""
        return Reason("{file}: ", file=self.where) + self.message if self.where else self.message

    def as_json(self) -> dict[str, Any]:
        """The "error" object of the JSON contract."""
        return {"kind": self.kind, "message": self.reason, "hint": self.hint}


class UsageError(FleetError, exit_code=EXIT_USAGE, kind="usage"):
    """The command line asks for something that makes no sense (exit 2)."""


class Ambiguous(UsageError):
    """Means that an argument has several meanings (exit 2)."""


class InventoryError(FleetError, exit_code=EXIT_INVENTORY, kind="inventory"):
    """The inventory, a hostfile, a selection or a playbook is invalid or missing (exit 121)."""


class NoInventory(InventoryError):
    """No inventory was given, and no file is at the default paths (exit 121)."""


class ConnectError(FleetError, exit_code=EXIT_CONNECT, kind="unreachable"):
    """A host cannot be reached, authenticated, or is not who it was (exit 122).

    kinds: resolve, refused, unreachable, timeout, banner, auth, host-key, unknown-host-key, gateway, lost,
    no-python, protocol, config (an ssh config or known_hosts that cannot be followed).
    """


class Silent(ConnectError):
    """A host was reached, and then sent nothing for so long that it counts as lost."""


class ProtocolError(ConnectError):
    """A node was reached, and sent a message that no program of fleet sends."""

    def __init__(self, what: str, host: str | None = None) -> None:
        super().__init__(
            f"the node does not keep to fleet's protocol: {what}",
            host=host,
            kind="protocol",
            hint="something else answers in place of fleet's program, or the node is broken",
        )


class PreflightError(FleetError, exit_code=EXIT_PREFLIGHT, kind="preflight"):
    """Parity or preflight refused (exit 123).

    findings: of a launch, what refuses it: each {"id", "severity", "hosts", "message", "remedy"}.
    """

    findings: Sequence[Mapping[str, Any]] = ()


class Occupied(PreflightError):
    """Live runs use the hosts, and no other finding refuses them; a launch may wait for the end of these runs. held:
    (host, run) of each. may_run: a part of the refused run may have started, and its stop is not confirmed."""

    held: frozenset[tuple[str, str]] = frozenset()
    may_run = False


class DeadlineError(FleetError, exit_code=EXIT_TIMEOUT, kind="deadline"):
    """A remote command or a whole verb ran out of its time (exit 124)."""


class HostFailed(FleetError, exit_code=EXIT_HOST_FAILED, kind="failed"):
    """Something fleet did on a host failed there (exit 1)."""


class LabError(FleetError, exit_code=EXIT_HOST_FAILED, kind="lab"):
    """The lab cannot be made, or cannot do what was requested (exit 1)."""


class LimitError(FleetError, kind="limit"):
    """This machine's own limits (open files, threads) are too low for the request (exit 125)."""


class Interrupted(FleetError, exit_code=EXIT_INTERRUPTED, kind="interrupted"):
    """The user pressed Ctrl-C (exit 130)."""
