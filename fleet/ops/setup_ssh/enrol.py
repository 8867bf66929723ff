"""Host keys: which hosts are queried for theirs, what is known, what the user has to confirm. Before anything else is
sent."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from fleet.each import failed, over
from fleet.errors import ConnectError, Reason
from fleet.events import Started
from fleet.model import Host, Result
from fleet.ops.setup_ssh.passwords import NewKey, SetupRuntime
from fleet.ops.setup_ssh.planning import HostPlan
from fleet.requests.hosts import SetupSsh
from fleet.runtime import Runtime
from fleet.transport.ssh.hostkeys import HostKey
from fleet.transport.ssh.transport import SshTransport

READING = "reading host keys"


class Settled(NamedTuple):
    """how: host -> what vouches for its key. failures: those that are not to be trusted. accepted: keys to keep."""

    how: dict[str, str]
    failures: dict[str, Result]
    accepted: list[tuple[HostPlan, HostKey]]


def settle(level: Sequence[HostPlan], request: SetupSsh, transport: SshTransport, runtime: SetupRuntime) -> Settled:
    """The host keys of these hosts.

    Keys that are on file or pinned are left to the transport, which verifies them on every connection. The others
    are fetched (one connection each, nothing sent but a key exchange) and judged.
    """
    how: dict[str, str] = {}
    failures: dict[str, Result] = {}
    unknown: list[HostPlan] = []
    for plan in level:
        pin, known = plan.host.host_key, transport.known_hosts.of(plan.endpoint).known
        theirs = {pin.rstrip("=")} if pin else {e.key.fingerprint for e in known}
        if plan.name in request.replace_key or not theirs:
            unknown.append(plan)
            continue
        try:
            _no_other_is_called_so(plan, theirs, transport)
            how[plan.name] = "pinned" if pin else "known"
        except ConnectError as error:
            failures[plan.name] = failed(plan.host, error)

    new: list[NewKey] = []
    accepted: list[tuple[HostPlan, HostKey]] = []
    for plan, key in _fetch(unknown, transport, runtime, failures):
        try:
            _judge(plan, key, transport, plan.name in request.replace_key)
        except ConnectError as error:
            failures[plan.name] = failed(plan.host, error)
            continue
        on_file = [e.key for e in transport.known_hosts.of(plan.endpoint).known]
        if plan.host.host_key:
            how[plan.name] = "pinned"
            accepted.append((plan, key))
        elif key in on_file:
            how[plan.name] = "known"
        else:
            new.append(NewKey(plan.name, str(plan.endpoint), key, tuple(dict.fromkeys(map(str, on_file)))))
    if new:
        yes = True if request.tofu else runtime.confirm(new)
        by_name = {plan.name: plan for plan in level}
        for entry in new:
            plan = by_name[entry.host]
            if yes:
                how[plan.name] = "replaced" if entry.old else "trusted on first use" if request.tofu else "confirmed"
                accepted.append((plan, entry.key))
            else:
                failures[plan.name] = failed(plan.host, _refused(entry, asked=yes is not None))
    return Settled(how, failures, accepted)


def _judge(plan: HostPlan, key: HostKey, transport: SshTransport, replaced: bool) -> None:
    """ConnectError for a key that no user is to confirm. replaced: what is on file does not count."""
    transport.known_hosts.of(plan.endpoint).check_revoked(key)
    if not replaced:
        _no_other_is_called_so(plan, {key.fingerprint}, transport)
    pin = plan.host.host_key
    if pin and pin.rstrip("=") != key.fingerprint:
        raise ConnectError(
            Reason("the inventory expects host key {pin}, it presented {key}", pin=pin, key=key),
            kind="host-key",
            hint="if the change is expected: correct host_key in the inventory",
        )


def _no_other_is_called_so(plan: HostPlan, theirs: set[str], transport: SshTransport) -> None:
    """Plain ssh to the host's name is going to lead to where fleet dials; another machine of that name, whose key is
    on file, is not to be put in the shade. theirs: fingerprints."""
    if plan.called.known_name == plan.dialled:
        return
    found = transport.known_hosts.of(plan.called)
    on_file = [e.key for e in (*found.known, *found.bare)]
    if on_file and not theirs & {key.fingerprint for key in on_file}:
        raise ConnectError(
            f"this machine knows another host as {plan.name}: {on_file[0]}; {plan.endpoint} has {min(theirs)}",
            kind="host-key",
            hint="give it another name in the inventory; if it is the same host: "
            f"fleet setup-ssh --replace-key {plan.name}",
        )


def _fetch(
    plans: Sequence[HostPlan], transport: SshTransport, runtime: Runtime, failures: dict[str, Result]
) -> list[tuple[HostPlan, HostKey]]:
    """The keys these hosts present, in the order of `plans`."""
    found: dict[str, HostKey] = {}

    def one(host: Host) -> Result:
        runtime.emit(Started(host.name, READING))
        found[host.name] = _present(host, transport, runtime)
        return Result(host.name, ok=True)

    results = over([plan.host for plan in plans], runtime, one, READING)
    failures.update({result.host: result for result in results if not result.ok})
    return [(plan, found[plan.name]) for plan in plans if plan.name in found]


def _present(host: Host, transport: SshTransport, runtime: Runtime) -> HostKey:
    key = transport.host_key(host, runtime.cancel)
    pin = (host.host_key or key.fingerprint).rstrip("=")
    # the pinned key may be one of the host's others
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa") if key.fingerprint != pin else ():
        if kind != key.type:
            with contextlib.suppress(ConnectError):
                other = transport.host_key(host, runtime.cancel, kind)
                if other.fingerprint == pin:
                    return other
    return key


def _refused(entry: NewKey, *, asked: bool) -> ConnectError:
    if entry.old:
        message = Reason(
            "host key changed: expected {old}, it presented {key}", old=", ".join(entry.old), key=entry.key
        )
        hint = "it was not confirmed" if asked else "confirm it on a terminal, or run with --tofu"
        return ConnectError(message, kind="host-key", hint=hint)
    if asked:
        return ConnectError(
            Reason("its host key {key} was not confirmed", key=entry.key),
            kind="unknown-host-key",
            hint="compare it with 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' on the host",
        )
    return ConnectError(
        Reason("unknown host key: it presented {key}, and there is no terminal to confirm it on", key=entry.key),
        kind="unknown-host-key",
        hint="set host_key in the inventory, or accept what answers now with --tofu",
    )
