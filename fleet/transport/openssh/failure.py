"""Reads why `ssh` could not connect from its output at LogLevel DEBUG1."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fleet.errors import ConnectError, FleetError, Reason
from fleet.model import Host
from fleet.transport.ssh.dial import os_error, unresolved
from fleet.transport.ssh.endpoint import Endpoint
from fleet.transport.ssh.gates import ended_during, no_banner, refused_by_gateway, unanswered_through
from fleet.transport.ssh.hostkeys import changed, not_pinned, unknown
from fleet.transport.ssh.known_hosts import Entry, parse

_CODES = {os.strerror(code).lower(): code for code in errno.errorcode}
_KEY_TYPES = {"-cert-": "*-cert-*", "ed25519": "*ed25519*", "ecdsa": "ecdsa-*", "rsa": "*rsa*"}
# lines of ssh that do not describe the failure
_NOISE = re.compile(r"debug\d: |Warning: |Authenticated to |@@@|Transferred: |Bytes per second: ")


class SshOutput:
    """Holds the output of one `ssh` to `host` at `endpoint`. seconds: the time that ssh had. gateway: (name of the
    gateway, its refusals to forward meanwhile), or None."""

    def __init__(
        self, text: str, host: Host, endpoint: Endpoint, seconds: float, gateway: tuple[str, Sequence[str]] | None
    ) -> None:
        self._text, self._host, self._endpoint, self._seconds = text, host, endpoint, seconds
        self._gateway = gateway
        self._at = f"{endpoint.address} port {endpoint.port}"
        self._spoke = "Remote protocol version" in text
        self._lines = [line for line in text.splitlines() if line.strip() and not _NOISE.match(line)]

    @property
    def key_types(self) -> str | None:
        """Returns the pattern of algorithms that match the presented host key."""
        found = self._last(r"Server host (?:key|certificate): (\S+) ")
        return next((pattern for name, pattern in _KEY_TYPES.items() if found and name in found[1]), None)

    def _last(self, pattern: str) -> re.Match[str] | None:
        return next(reversed(list(re.finditer(pattern, self._text, re.MULTILINE))), None)

    def failure(self, in_time: bool) -> FleetError:
        """Returns the error that the output shows. in_time: ssh ended by itself, before its time was over."""
        return self._host_key() or self._refusal() or (self._ended() if in_time else self._silence())

    def _host_key(self) -> ConnectError | None:
        if "Host key verification failed" not in self._text:
            return None
        found = self._last(r"Server host (?:key|certificate): (?:ssh-|ecdsa-sha2-)?(\S+) (SHA256:[^\s,]+)")
        key = f"{found[2]} ({found[1]})" if found else "another one"
        pin = self._host.host_key
        if pin is not None and (not found or pin.rstrip("=") != found[2]):
            return not_pinned(self._host, key)
        offending = self._last(r"Offending \S+ key in (.+):(\d+)")
        entry = _entry(Path(offending[1]), offending[0].rpartition(" in ")[2]) if offending else None
        if entry is not None and "HAS CHANGED" in self._text:
            return changed(self._host, key, entry)
        if "revoked" in self._text:
            return ConnectError(
                Reason("it presented {key}, which is marked as revoked", key=key),
                kind="host-key",
                hint="this key must not be trusted any more; find out who answers at that address",
            )
        return unknown(self._endpoint, key)

    def _refusal(self) -> FleetError | None:
        """Returns the error for a clear message of ssh, None without such a message."""
        for pattern, error in (
            (r"Permission denied \((.*)\)|Too many authentication failures", self._not_let_in),
            (r"Could not resolve hostname (\S+): (.+?)\r?$", unresolved),
            (r"connect to host \S+ port \d+: (.+?)\r?$", self._not_connected),
            (r"^(\S+?):? line (\d+): (.+?)\r?$", self._bad_line),
        ):
            if found := self._last(pattern):
                return error(*found.groups())
        return None

    def _not_connected(self, why: str) -> FleetError:
        return os_error(OSError(_CODES.get(why.lower(), 0), why), self._at)

    def _bad_line(self, file: str, line: str, why: str) -> ConnectError:
        if "knownhostscommand" in why.lower():
            return ConnectError(
                "its host_key in the inventory needs OpenSSH 8.5 or newer on this machine",
                kind="config",
                hint="enrol the key with 'fleet setup-ssh' and drop host_key, or use --transport ssh",
            )
        return ConnectError(why, where=f"{file}:{line}", kind="config")

    def _not_let_in(self, allowed: str | None) -> ConnectError:
        names = [Path(path).name for path in re.findall(r"Offering public key: (.+?) [A-Z0-9-]+ SHA256:", self._text)]
        tried = ", ".join(f"publickey ({name})" for name in dict.fromkeys(names))
        what = f"tried {tried}" if tried else "there was no key to offer"
        suffix = f"; the host allows {allowed.replace(',', ', ')}" if allowed else ""
        return ConnectError(
            f"not authenticated as {self._endpoint.user}: {what}{suffix}",
            kind="auth",
            hint="does 'ssh -o BatchMode=yes HOST true' get in? 'fleet setup-ssh' installs a key there",
        )

    def _ended(self) -> ConnectError:
        why = self._lines[0].strip() if self._lines else "ssh ended without a message"
        if not self._spoke and self._endpoint.proxy_command is not None:
            return ConnectError(
                f"its ProxyCommand leads nowhere: {why[:300]}",
                where=self._endpoint.proxy_command or None,
                kind="gateway",
                hint="does 'ssh HOST true' get there?",
            )
        if not self._spoke and self._gateway and self._gateway[1]:
            name, refusals = self._gateway
            code = 2 if refusals[-1].startswith("connect failed") else 1
            return refused_by_gateway(code, refusals[-1].rpartition(": ")[2], name, self._at)
        if not self._spoke and re.search(r"MaxStartups|exchange_identification|banner exchange", self._text):
            odd = re.search(r"invalid characters|Invalid SSH identification|banner line", self._text)
            line = re.search(r"banner line 0: (.*?)\r?$", self._text, re.MULTILINE)
            text = (line[1][:200] if line else "") if odd and "MaxStartups" not in self._text else None
            return no_banner(self._at, text, None)
        if re.search(r"Connection (closed|reset)|Broken pipe|disconnect", why):
            return ended_during("the key exchange or authentication", self._at, None)
        return ConnectError(Reason("{at}: ", at=self._at) + why[:300], kind="protocol", hint="'ssh -v HOST' says more")

    def _silence(self) -> ConnectError:
        """Returns the error for an ssh that did not connect in time, by the step that it reached."""
        proxied = self._gateway is not None or self._endpoint.proxy_command is not None
        if "Connection established" not in self._text and not proxied:
            return ConnectError(
                Reason("no answer from {at} within {s} s", at=self._at, s=f"{self._seconds:g}"),
                kind="timeout",
                hint="is the host up, is the address right, does a firewall drop the port?",
            )
        if not self._spoke and self._gateway:
            return unanswered_through(self._gateway[0], self._at, self._seconds)
        if not self._spoke:
            return no_banner(self._at, None, self._seconds)
        during = "authentication" if "SSH2_MSG_NEWKEYS received" in self._text else "the key exchange"
        return ended_during(during, self._at, self._seconds)


def _entry(file: Path, where: str) -> Entry | None:
    """Returns the line of a known_hosts file that ssh names."""
    with contextlib.suppress(OSError):
        return next((entry for entry in parse(file.read_bytes(), str(file)) if entry.where == where), None)
    return None
