"""Host keys: who is asked for it, what is known, what the user has to confirm. Before anything else is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleet import fanout
from fleet.each import failed
from fleet.errors import ConnectError, FleetError, Interrupted, Reason
from fleet.events import Finished, Round, Started
from fleet.model import Host, Result
from fleet.ops.setup_ssh.passwords import SetupRuntime
from fleet.ops.setup_ssh.planning import HostPlan, SetupPlan
from fleet.runtime import Runtime
from fleet.transport.ssh.hostkeys import HostKey
from fleet.transport.ssh.transport import SshTransport


@dataclass(frozen=True)
class NewKey:
    """A host key nobody vouches for yet. old: fingerprints on file that it would replace."""

    host: str
    target: str
    key: HostKey
    old: tuple[str, ...] = ()


class Keeper(Protocol):
    """Where keys that are accepted go: the head's known_hosts, or an inventory."""

    plan: SetupPlan

    def enrol(self, wanted: Iterable[tuple[HostPlan, HostKey]], *, instead: bool = False) -> None: ...


def enrol(
    level: Sequence[HostPlan], head: Keeper, transport: SshTransport, runtime: SetupRuntime
) -> tuple[dict[str, str], dict[str, Result]]:
    """Settle the host keys of these hosts; returns ({host: how}, {host: failure}).

    Keys that are on file or pinned are left to the transport, which verifies them on every connection. The others
    are fetched (one connection each, nothing sent but a key exchange), judged, and go to where `head` keeps them.
    """
    options = head.plan.options
    how: dict[str, str] = {}
    failures: dict[str, Result] = {}
    asked: list[HostPlan] = []
    for plan in level:
        theirs = {e.key.fingerprint for e in transport.known_hosts.of(plan.endpoint).known}
        if plan.host.host_key:
            theirs = {plan.host.host_key.rstrip("=")}
        if theirs and plan.name not in options.replace and (other := _called_otherwise(plan, theirs, transport)):
            failures[plan.name] = failed(plan.host, other)
        elif plan.name in options.replace or not (plan.host.host_key or _on_file(plan, transport)):
            asked.append(plan)
        else:
            how[plan.name] = "pinned" if plan.host.host_key else "known"
    fetched = _fetch(asked, transport, runtime, failures)

    new: list[NewKey] = []
    accepted: list[tuple[HostPlan, HostKey]] = []
    for plan, key in fetched:
        on_file = transport.known_hosts.of(plan.endpoint)
        try:
            on_file.check_revoked(key)
            other = None if plan.name in options.replace else _called_otherwise(plan, {key.fingerprint}, transport)
            if other is not None:
                raise other
        except ConnectError as error:
            failures[plan.name] = failed(plan.host, error)
            continue
        if plan.host.host_key:
            if plan.host.host_key.rstrip("=") == key.fingerprint:
                how[plan.name] = "pinned"
                accepted.append((plan, key))
            else:
                failures[plan.name] = failed(
                    plan.host,
                    ConnectError(
                        Reason(
                            "the inventory expects host key {pin}, it presented {key}", pin=plan.host.host_key, key=key
                        ),
                        kind="host-key",
                        hint="if the change is expected: correct host_key in the inventory",
                    ),
                )
        elif any(e.key == key for e in on_file.known):
            how[plan.name] = "known"
        else:
            old = tuple(dict.fromkeys(str(e.key) for e in on_file.known))
            new.append(NewKey(plan.name, str(plan.endpoint), key, old))
    if new:
        yes = True if options.tofu else runtime.confirm(new)
        by_name = {plan.name: plan for plan in level}
        for entry in new:
            plan = by_name[entry.host]
            if yes:
                how[plan.name] = "replaced" if entry.old else "trusted on first use" if options.tofu else "confirmed"
                accepted.append((plan, entry.key))
            else:
                failures[plan.name] = failed(plan.host, _refused(entry, asked=yes is not None))
    replaced = [(p, key) for p, key in accepted if p.name in options.replace]
    if replaced:
        head.enrol(replaced, instead=True)
    head.enrol(accepted)
    return how, failures


def _called_otherwise(plan: HostPlan, theirs: set[str], transport: SshTransport) -> ConnectError | None:
    """Plain ssh to the host's name is going to lead to where fleet dials; another machine of that name, whose key is
    on file, is not to be put in the shade."""
    if plan.called.known_name == plan.dialled:
        return None
    found = transport.known_hosts.of(plan.called)
    on_file = [e.key for e in (*found.known, *found.bare)]
    if not on_file or theirs & {key.fingerprint for key in on_file}:
        return None
    return ConnectError(
        f"this machine knows another host as {plan.name}: {on_file[0]}; {plan.endpoint} has {min(theirs)}",
        kind="host-key",
        hint="give it another name in the inventory; if it is the same host: "
        f"fleet setup-ssh --replace-key {plan.name}",
    )


def _on_file(plan: HostPlan, transport: SshTransport) -> bool:
    return bool(transport.known_hosts.of(plan.endpoint).known)


def _fetch(
    plans: Sequence[HostPlan], transport: SshTransport, runtime: Runtime, failures: dict[str, Result]
) -> list[tuple[HostPlan, HostKey]]:
    """The keys these hosts present, in the order of `plans`."""
    runtime.emit(Round("reading host keys", tuple(plan.name for plan in plans)))

    def one(plan: HostPlan) -> HostKey:
        runtime.emit(Started(plan.name, "reading host keys"))
        return _present(plan.host, transport, runtime)

    found: dict[str, HostKey] = {}
    for plan, answer in fanout.run(plans, one, limit=runtime.fanout, cancel=runtime.cancel):
        if isinstance(answer, HostKey):
            found[plan.name] = answer
        else:
            failures[plan.name] = failed(plan.host, answer)
        runtime.emit(Finished(failures.get(plan.name) or Result(plan.name, ok=True)))
    return [(plan, found[plan.name]) for plan in plans if plan.name in found]


def _present(host: Host, transport: SshTransport, runtime: Runtime) -> HostKey:
    key = transport.host_key(host, runtime.cancel)
    if host.host_key is None or key.fingerprint == host.host_key.rstrip("="):
        return key
    # the pinned key may be one of the host's others
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"):
        if kind != key.type:
            try:
                other = transport.host_key(host, runtime.cancel, kind)
            except Interrupted:
                raise
            except FleetError:
                continue
            if other.fingerprint == host.host_key.rstrip("="):
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
