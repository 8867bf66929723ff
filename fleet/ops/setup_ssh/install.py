"""The head's key onto the hosts, by key where it is accepted already, else by one password attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.errors import ConnectError
from fleet.events import Notice
from fleet.model import Host, Result
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.ops.setup_ssh import node
from fleet.ops.setup_ssh.authorize import add_keys
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.node import NodeState
from fleet.ops.setup_ssh.passwords import Passwords, ask_once
from fleet.ops.setup_ssh.plan import HostPlan
from fleet.transport.base import Session
from fleet.transport.ssh_channel import SshSession
from fleet.transport.ssh_hostkeys import HostKey

# asked for the password of these hosts; None when there is nobody to ask
AskPassword = Callable[[Sequence[str]], str | None]


@dataclass
class Reached:
    """A host the head got into. changed: what was done there, in words."""

    plan: HostPlan
    state: NodeState
    host_key: HostKey
    changed: list[str] = field(default_factory=list)


def install(
    level: Sequence[HostPlan], head: Head, runtime: Runtime, passwords: Passwords, ask: AskPassword
) -> tuple[dict[str, Reached], tuple[Result, ...]]:
    """Authorise the head's key on these hosts and read what is in their ~/.ssh; returns (those reached, the
    results). The password is asked for once, when the first host turns out not to take the key."""
    reached: dict[str, Reached] = {}
    plans = {p.name: p for p in level}

    def task(session: Session, host: Host) -> Result:
        assert isinstance(session, SshSession)
        plan = plans[host.name]
        found = Reached(plan, _look(session, plan, head, runtime), session.host_key)
        authorise(session, found, head, runtime)
        reached[host.name] = found
        return Result(host.name, ok=True)

    results = {r.host: r for r in on_each([p.host for p in level], runtime, task, what="making keys")}
    refused = [
        p.host for p in level
        if (error := results[p.name].error) and error.kind == "auth" and not passwords.used(p.name)
    ]
    if refused and ask_once(passwords, [h.name for h in refused], ask):
        results.update({r.host: r for r in on_each(refused, runtime, task, what="logging in with the password")})
    elif refused:
        for host in refused:
            results[host.name] = Result(host.name, ok=False, error=ConnectError(
                "the key is not accepted yet, and there is no terminal to ask for the password", host=host.name,
                kind="auth", hint="give it with --password-file FILE"))
    head.enrol((r.plan.names, r.host_key) for r in reached.values())
    return reached, tuple(results[p.name] for p in level)


def _look(session: Session, plan: HostPlan, head: Head, runtime: Runtime) -> NodeState:
    options = head.plan.options
    own_key = options.new_key_type if options.mesh and not plan.gateway else None
    state = node.look(session, key_type=own_key, cancel=runtime.cancel)
    trace = head.record.host(plan.name)
    for name in state.created:
        if name == ".ssh":
            trace.made_dir = True
        elif state.key is not None:
            trace.keys[name] = f"{state.key.type.decode()} {state.key.blob.decode()}"
    if state.created:
        head.record.save()
    if state.open_home:
        runtime.emit(Notice("warning", f"its home {state.open_home} can be written by others: sshd ignores keys there",
                            host=plan.name, hint=f"chmod go-w {state.open_home}"))
    if state.no_key:
        runtime.emit(Notice("warning", f"it has no key of its own: {state.no_key}", host=plan.name,
                            hint="--key-type rsa, or install OpenSSH's client there"))
    return state


def authorise(session: Session, found: Reached, head: Head, runtime: Runtime) -> None:
    """Put the head's public key into authorized_keys, if it is not there."""
    state, name = found.state, "authorized_keys"
    found.changed += [f"made {x}" for x in state.created] + [f"mode of {x}" for x in state.repaired]
    data, before = state.files[name]
    new, added = add_keys(data, [head.keys[found.plan.identity].public])
    if new is None or new == data:
        return
    head.record.host(found.plan.name).note(name, added)
    head.record.save()
    done = node.change(session, [node.put(name, before, new)], cancel=runtime.cancel)
    state.files[name] = (new, done.sums[name])
    found.changed.append(name)
