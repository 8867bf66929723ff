"""Decides if a host's key is the right one; no other module does."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import ConnectError, Reason
from fleet.model import Host
from fleet.transport.ssh.endpoint import Endpoint
from fleet.transport.ssh.known_hosts import Entry
from fleet.transport.ssh.known_hosts import HostKey as HostKey
from fleet.transport.ssh.known_hosts import KnownHosts as KnownHosts

# the algorithms that fleet requests, best first, without ssh-rsa (SHA-1)
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


class HostKeyCheck:
    """Checks the key that a host presents. pin: the fingerprint that the inventory names, if any. preferred: key types
    to request. The types on file come first, so that a host with several keys presents a known one."""

    def __init__(self, host: Host, endpoint: Endpoint, known: KnownHosts) -> None:
        self._host, self._endpoint, self.pin = host, endpoint, host.host_key
        self._on_file = known.of(endpoint)
        on_file = {e.key.type for e in (self._on_file.known or self._on_file.bare)}
        self.preferred = tuple(sorted(ALGORITHMS, key=lambda kind: kind not in on_file))

    def check(self, key: HostKey) -> None:
        """Raises ConnectError (host-key, unknown-host-key) unless it is the right key."""
        known = self._on_file.known
        self._on_file.check_revoked(key)
        pin = self.pin
        if pin is not None and pin.rstrip("=") != key.fingerprint:
            raise not_pinned(self._host, key)
        if any(e.key.blob == key.blob for e in (*known, *self._on_file.bare)):
            return
        if known and (pin is None or any(e.key.type == key.type for e in known)):
            raise changed(self._host, key, min(known, key=lambda e: e.key.type != key.type))
        if pin is None:
            raise unknown(self._endpoint, key, self._on_file.authorities)


def not_pinned(host: Host, key: object) -> ConnectError:
    """Returns the error for a key that is not the inventory's."""
    return ConnectError(
        Reason("the inventory expects host key {pin}, it presented {key}", pin=host.host_key, key=key),
        kind="host-key",
        hint=Reason(
            "if the change is expected: correct host_key in the inventory, then fleet setup-ssh --replace-key {host}",
            host=host.name,
        ),
    )


def changed(host: Host, key: object, known: Entry) -> ConnectError:
    """Returns the error for a key that is not the one on file."""
    return ConnectError(
        Reason(
            "host key changed: expected {known} ({where}), it presented {key}",
            known=known.key,
            where=known.where,
            key=key,
        ),
        kind="host-key",
        hint=Reason("if the change is expected: fleet setup-ssh --replace-key {host}", host=host.name),
    )


def unknown(endpoint: Endpoint, key: object, authorities: Sequence[Entry] = ()) -> ConnectError:
    """Returns the error for a key if the host has none on file."""
    message = Reason(
        "unknown host key: it presented {key}, and nothing is on file for {name}", key=key, name=endpoint.known_name
    )
    if authorities:
        message += f" but a @cert-authority ({authorities[0].where}), which fleet does not follow"
    return ConnectError(
        message, kind="unknown-host-key", hint="enrol it: fleet setup-ssh; or set host_key in the inventory"
    )
