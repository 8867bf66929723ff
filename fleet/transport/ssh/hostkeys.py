"""The one decision whether a host's key is the right one."""

from __future__ import annotations

from collections.abc import Callable

from fleet.errors import ConnectError, Reason
from fleet.model import Host
from fleet.transport.ssh.endpoint import Endpoint
from fleet.transport.ssh.known_hosts import HostKey as HostKey
from fleet.transport.ssh.known_hosts import KnownHosts as KnownHosts

# What fleet asks for, best first; ssh-rsa with SHA-1 is not among them.
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}

AcceptUnknown = Callable[[Host, HostKey], bool]


class HostKeyCheck:
    """Decides about the key one host presents. `preferred`: key types to ask for, those on file first, so that
    a host with several keys presents the one that is known."""

    def __init__(
        self, host: Host, endpoint: Endpoint, known: KnownHosts, accept_unknown: AcceptUnknown | None = None
    ) -> None:
        self._host, self._endpoint, self._accept_unknown = host, endpoint, accept_unknown
        self._on_file = known.of(endpoint)
        on_file = {e.key.type for e in (self._on_file.known or self._on_file.bare)}
        self.preferred = tuple(sorted(ALGORITHMS, key=lambda kind: kind not in on_file))
        self.presented: HostKey | None = None

    @property
    def pinned(self) -> str | None:
        return self._host.host_key

    def check(self, key: HostKey) -> None:
        """Return when it is the right key. ConnectError: host-key (both fingerprints), unknown-host-key."""
        self.presented = key
        known = self._on_file.known
        self._on_file.check_revoked(key)
        pin = self.pinned
        if pin is not None and pin.rstrip("=") != key.fingerprint:
            raise ConnectError(
                Reason("the inventory expects host key {pin}, it presented {key}", pin=pin, key=key),
                kind="host-key",
                hint=Reason(
                    "if the change is expected: correct host_key in the inventory, then "
                    "fleet setup-ssh --replace-key {host}",
                    host=self._host.name,
                ),
            )
        if any(e.key.blob == key.blob for e in (*known, *self._on_file.bare)):
            return
        if known and (pin is None or any(e.key.type == key.type for e in known)):
            best = min(known, key=lambda e: e.key.type != key.type)
            raise ConnectError(
                Reason(
                    "host key changed: expected {known} ({where}), it presented {key}",
                    known=best.key,
                    where=best.where,
                    key=key,
                ),
                kind="host-key",
                hint=Reason("if the change is expected: fleet setup-ssh --replace-key {host}", host=self._host.name),
            )
        if pin is not None or (self._accept_unknown and self._accept_unknown(self._host, key)):
            return
        said = Reason(
            "unknown host key: it presented {key}, and nothing is on file for {name}",
            key=key,
            name=self._endpoint.known_name,
        )
        if self._on_file.authorities:
            said += f" but a @cert-authority ({self._on_file.authorities[0].where}), which fleet does not follow"
        raise ConnectError(
            said,
            kind="unknown-host-key",
            hint="enrol it: fleet setup-ssh (or set host_key in the inventory)",
        )
