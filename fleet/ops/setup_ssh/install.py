"""Changes the hosts. It logs in with a key that is accepted already, or with a password, and installs the head's key.
Then it gives every node access to every node, by one write to each node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.each import Task, failed, on_each
from fleet.errors import ConnectError, FleetError, Reason
from fleet.events import Notice
from fleet.model import Host, Result
from fleet.node.base.wire import encode
from fleet.ops.setup_ssh import claims, config_block, edits, node
from fleet.ops.setup_ssh.edits import PublicKey, add_keys
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.node import NodeState
from fleet.ops.setup_ssh.passwords import SetupRuntime, ask_once
from fleet.ops.setup_ssh.planning import HostPlan
from fleet.ops.setup_ssh.record import Trace
from fleet.ops.setup_ssh.verify import SSHD_HINT
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.ssh.channel import SshSession
from fleet.transport.ssh.hostkeys import HostKey

Files = dict[str, bytes]


@dataclass
class Reached:
    """Holds a host that the head logged in to. changed: the changes on the host, as text. used: the host's public key
    at its last setup, if any."""

    plan: HostPlan
    state: NodeState
    host_key: HostKey
    changed: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)


def install(
    level: Sequence[HostPlan], head: Head, runtime: SetupRuntime
) -> tuple[dict[str, Reached], tuple[Result, ...]]:
    """Authorises the head's key on these hosts and reads their ~/.ssh. Returns (reached hosts, results). After a login
    by password, the key is tried at once, because sshd may refuse the key."""
    reached: dict[str, Reached] = {}
    plans = {p.name: p for p in level}
    fresh: list[Host] = []

    def task(session: Session, host: Host) -> Result:
        assert isinstance(session, SshSession)
        plan = plans[host.name]
        used = head.record.host(host.name).uses
        found = Reached(plan, _look(session, plan, head, runtime), session.host_key, used=used)
        authorise(session, found, head, runtime)
        reached[host.name] = found
        if not session.is_key_login:
            fresh.append(host)
        return Result(host.name, ok=True)

    head.begin(plans)
    results = by_key_or_password([p.host for p in level], runtime, task, what="installing the key")
    head.not_begun(
        name
        for name in head.fresh - reached.keys()
        if isinstance(error := results[name].error, ConnectError) and error.kind not in ("lost", "protocol")
    )
    tried = on_each(fresh, runtime, lambda _, host: Result(host.name, ok=True), what="trying the key") if fresh else ()
    results.update({r.host: _explained(r, reached[r.host]) for r in tried})
    for name, found in reached.items():
        if found.state.open_home and results[name].ok:
            home = found.state.open_home
            runtime.emit(
                Notice(
                    "warning",
                    f"others can write to its home {home}: its sshd allows that, most refuse all keys then",
                    host=name,
                    hint=_there(found.plan, "chmod", "go-w", home),
                )
            )
    head.enrol((r.plan, r.host_key) for r in reached.values())
    return reached, tuple(results[p.name] for p in level)


def by_key_or_password(hosts: Sequence[Host], runtime: SetupRuntime, task: Task, *, what: str) -> dict[str, Result]:
    """Runs the task on every host. Then requests the password once for the hosts that did not accept the key, and runs
    the task on these hosts again."""
    results = {r.host: r for r in on_each(hosts, runtime, task, what=what)}
    refused = [
        host
        for host in hosts
        if (found := results[host.name].error) and found.kind == "auth" and not runtime.passwords.used(host.name)
    ]
    if refused and ask_once(runtime.passwords, [h.name for h in refused], runtime.ask_password):
        results.update({r.host: r for r in on_each(refused, runtime, task, what=what)})
    elif refused:
        error = ConnectError(
            "the key is not accepted yet, and there is no terminal to ask for the password",
            kind="auth",
            hint="give it with --password-file FILE",
        )
        results.update({host.name: failed(host, error.but(host=host.name)) for host in refused})
    return results


def _explained(result: Result, found: Reached) -> Result:
    """Returns the result with a better hint, if sshd refuses the key that was just installed."""
    error, home = result.error, found.state.open_home
    if error is not None and error.kind == "auth" and home:
        error.message = f"its sshd refuses the key: others can write to the home {home} (StrictModes)"
        error.hint = _there(found.plan, "chmod", "go-w", home) + ", then run this again"
    elif error is not None and error.kind == "auth":
        error.hint = f"the key is in its ~/.ssh/authorized_keys, but sshd does not take it: {SSHD_HINT}"
    return result


def _there(plan: HostPlan, *argv: str) -> Reason:
    """Returns a line to copy that runs a command on a host without an entry in the ssh config."""
    at = plan.endpoint
    tokens = [
        "ssh",
        *(["-p", str(at.port)] if at.port != 22 else []),
        *(["-J", ",".join(at.proxy_jump)] if at.proxy_jump else []),
        f"{at.user}@{at.address}",
    ]
    line = shlex.join(argv)
    return Reason("{ssh} ", ssh=shlex.join(tokens)) + (line if line == " ".join(argv) else shlex.quote(line))


def _look(session: Session, plan: HostPlan, head: Head, runtime: Runtime) -> NodeState:
    options = head.plan.request
    own_key = options.new_key_type if options.mesh and not plan.gateway else None
    state = node.look(session, key_type=own_key, make=False, cancel=runtime.cancel)
    trace, created, modes = head.record.host(plan.name), state.created, state.modes
    if trace.kept is None:
        there = [".ssh"] * (".ssh" not in created)
        there += [what for name in node.FILES for what in edits.found(state.data(name), name)]
        trace.kept = there if plan.name in head.fresh else []
    for name, (was, now) in modes.items():
        trace.modes.setdefault(name, (was, now))
    if state.makes is not None or modes:
        trace.keys |= {state.makes: ""} if state.makes is not None else {}
        head.record.save()  # before the key is made: an undo then finds it
        state = node.look(session, key_type=own_key, cancel=runtime.cancel)
        state.created = [*created, *state.created]
    if state.key is not None and (state.key_name in state.created or trace.keys.get(state.key_name or "") == ""):
        trace.keys[str(state.key_name)] = state.key.id
    assert isinstance(session, SshSession)
    trace.at = {name: f"{session.host_key.fingerprint} {path}" for name, path in state.at.items()}
    head.record.save()
    return state


def authorise(session: Session, found: Reached, head: Head, runtime: Runtime) -> None:
    """Adds the head's public key to authorized_keys, if it is missing."""
    state, name = found.state, "authorized_keys"
    found.changed += [f"made {x}" for x in state.created] + [f"mode of {x}" for x in state.modes]
    data = state.data(name)
    mine = [head.keys[found.plan.identity]]
    new, added = add_keys(data, mine)
    trace = head.record.host(found.plan.name)
    trace.need(name, edits.lines_with_keys(new, mine))
    if new is None or new == data:
        return
    trace.note(name, added)
    head.record.save()
    _put(session, found, {name: new}, runtime)


def _put(session: Session, found: Reached, wanted: Files, runtime: Runtime) -> None:
    """Replaces these files on the host, in one call."""
    held = found.state.files
    calls = [node.put(name, held[name][1], data) for name, data in wanted.items()]
    done = node.change(session, calls, cancel=runtime.cancel)
    held.update({name: (data, done.sums[name]) for name, data in wanted.items()})
    found.changed += [name for name in wanted if name not in found.changed]


def mesh(reached: Mapping[str, Reached], head: Head, runtime: Runtime) -> tuple[Result, ...]:
    """Updates the three files of every reached host. Returns a Result for each host that needed a change. A host that
    claims another host's key is not changed; its Result has an error."""
    refused = claims.refused({name: found.state for name, found in reached.items()}, head)
    broken = [failed(reached[name].plan.host, error) for name, error in refused.items()]
    reached = {name: found for name, found in reached.items() if name not in refused}
    public = [r.state.key for r in reached.values() if r.state.key is not None]
    changes: dict[str, Files] = {}
    for name, found in reached.items():
        try:
            files, added = wanted_files(found, reached, public, head)
        except FleetError as error:  # a block with damaged markers
            broken.append(failed(found.plan.host, error))
            continue
        _warn_of_stale(found, reached, head, runtime)
        if files:
            changes[name] = files
            for file, what in added.items():
                head.record.host(name).note(file, what)
        needs(found, reached, [*public, head.keys[found.plan.identity]], files, head.record.host(name))
    head.record.save()

    def task(session: Session, host: Host) -> Result:
        _put(session, reached[host.name], changes[host.name], runtime)
        return Result(host.name, ok=True)

    hosts = [reached[name].plan.host for name in changes]
    return (*broken, *on_each(hosts, runtime, task, what="letting the hosts in to each other"))


def wanted_files(
    found: Reached, reached: Mapping[str, Reached], public: list[PublicKey], head: Head
) -> tuple[Files, dict[str, list[str]]]:
    """Returns ({file: new bytes} for files that have to change, {file: added lines}). Pure."""
    plan, state = head.plan, found.state
    known, held, mine = state.data("known_hosts"), state.data("authorized_keys"), head.record.host(found.plan.name)
    now = {key.blob for key in [*public, *head.keys.values()]}  # a node may claim another host's key
    replaced = plan.request.replace_key
    now |= {use.split()[1].encode() for name, t in head.record.hosts.items() if name not in replaced for use in t.uses}
    for other in reached.values():
        # if a machine has replaced another one, the old machine's key is removed
        old = [key.split()[1].encode() for key in other.used if other.plan.name in plan.request.replace_key]
        gone = [blob for blob in old if blob not in now]
        lines = [line for line in mine.files.get("authorized_keys", ()) if edits.blobs(encode(line)) & {*gone}]
        held = edits.remove(held or b"", lines) if lines else held
    for other in reached.values():
        if other.plan.name in plan.request.replace_key:
            known = edits.forget_hosts(known, other.plan.names, keep=other.host_key)
    keys, keys_added = add_keys(held, public)
    known, known_added = edits.add_hosts(known, [(r.plan.names, r.host_key) for r in reached.values()])
    block = config_block.only(plan.node_block(state.key_name), head.leads)
    config = config_block.put(state.data("config"), plan.node_block_name, block, f"{found.plan.name}:~/.ssh/config")
    wanted = {"authorized_keys": keys, "known_hosts": known, "config": config}
    files = {name: data for name, data in wanted.items() if data is not None and data != state.data(name)}
    added: dict[str, list[str]] = {
        "authorized_keys": keys_added,
        "known_hosts": known_added,
        "config": [plan.node_block_name],
    }
    return files, {name: added[name] for name in files}


def needs(found: Reached, reached: Mapping[str, Reached], keys: list[PublicKey], files: Files, trace: Trace) -> None:
    """Adds to the record the lines and keys on the host that this inventory relies on."""
    now = {name: files.get(name, found.state.data(name)) for name in node.FILES}
    trace.need("authorized_keys", edits.lines_with_keys(now["authorized_keys"], keys))
    wanted = [(r.plan.names, r.host_key) for r in reached.values()]
    trace.need("known_hosts", edits.lines_with_hosts(now["known_hosts"], wanted))
    trace.uses, trace.shows = [found.state.key.id] if found.state.key is not None else [], found.state.shows


def _warn_of_stale(found: Reached, reached: Mapping[str, Reached], head: Head, runtime: Runtime) -> None:
    """Warns if a node's known_hosts has other keys of these hosts. Such keys may be from before a reinstallation."""
    kept = head.plan.request.replace_key
    wanted = {n: (r.plan.name, r.host_key) for r in reached.values() if r.plan.name not in kept for n in r.plan.names}
    stale: dict[str, set[str]] = {}
    for name, key in edits.plain_keys(found.state.data("known_hosts")):
        host, right = wanted.get(name, ("", key))
        if key.type == right.type and key != right:
            stale.setdefault(host, set()).add(str(key))
    for host, keys in stale.items():
        text = Reason("it also knows another key for {other}: {keys}", other=host, keys=", ".join(sorted(keys)))
        runtime.emit(
            Notice(
                "warning",
                text,
                host=found.plan.name,
                hint=Reason("'fleet setup-ssh --replace-key {other}' removes it everywhere", other=host),
            )
        )
