"""Verifies host keys before anything else is sent: by the inventory, by known_hosts, or by the user's confirmation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from fleet.each import answers_of, failed
from fleet.errors import ConnectError, Reason
from fleet.model import Host, Result
from fleet.ops.setup_ssh.passwords import NewKey, SetupRuntime
from fleet.ops.setup_ssh.planning import HostPlan
from fleet.requests.hosts import SetupSsh
from fleet.runtime import Runtime
from fleet.transport.ssh.hostkeys import HostKey
from fleet.transport.ssh.transport import SshTransport

READING = "reading host keys"


class Settled(NamedTuple):
    """Holds the results. how: host -> why its key is trusted. failures: host -> its failed result, if its key is not
    trusted. accepted: keys to add to known_hosts."""

    how: dict[str, str]
    failures: dict[str, Result]
    accepted: list[tuple[HostPlan, HostKey]]


def settle(level: Sequence[HostPlan], request: SetupSsh, transport: SshTransport, runtime: SetupRuntime) -> Settled:
    """Verifies the host keys of these hosts.

    The transport verifies keys that are on file or pinned, on every connection. To judge the other keys, it fetches
    each by one connection, which only exchanges keys.
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
    hosts = [plan.host for plan in unknown]
    presented, refused = answers_of(hosts, runtime, lambda host: _present(host, transport, runtime), READING)
    failures.update(refused)
    for plan in [plan for plan in unknown if plan.name in presented]:
        key = presented[plan.name]
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
                failures[plan.name] = failed(plan.host, _refused(entry, answered=yes is not None))
    return Settled(how, failures, accepted)


def _judge(plan: HostPlan, key: HostKey, transport: SshTransport, replaced: bool) -> None:
    """Raises ConnectError for a key that the user must not confirm. replaced: whether to ignore the keys on file."""
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
    """Raises ConnectError if known_hosts has another machine's key under the host's name. Plain ssh to that name would
    then refuse this host. theirs: the host's fingerprints."""
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


def _present(host: Host, transport: SshTransport, runtime: Runtime) -> HostKey:
    key = transport.host_key(host, runtime.cancel)
    pin = (host.host_key or key.fingerprint).rstrip("=")
    # the pinned key may be another one of the host's keys
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa") if key.fingerprint != pin else ():
        if kind != key.type:
            with contextlib.suppress(ConnectError):
                other = transport.host_key(host, runtime.cancel, kind)
                if other.fingerprint == pin:
                    return other
    return key


def _refused(entry: NewKey, *, answered: bool) -> ConnectError:
    if entry.old:
        message = Reason(
            "host key changed: expected {old}, it presented {key}", old=", ".join(entry.old), key=entry.key
        )
        hint = "it was not confirmed" if answered else "confirm it on a terminal, or run with --tofu"
        return ConnectError(message, kind="host-key", hint=hint)
    if answered:
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
