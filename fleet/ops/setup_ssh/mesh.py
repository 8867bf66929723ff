"""Every node to every node: keys, host keys and a config block, computed on the head, one write a node."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.events import Notice
from fleet.model import Host, Result
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.ops.setup_ssh import config_block, known_hosts, node
from fleet.ops.setup_ssh.authorize import PublicKey, add_keys
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.install import Reached
from fleet.ops.setup_ssh.lines import Added
from fleet.transport.base import Session

Files = dict[str, bytes]


def mesh(reached: Mapping[str, Reached], head: Head, runtime: Runtime) -> tuple[Result, ...]:
    """Bring the three files of every host reached up to date; one Result a host that needed a change."""
    public = [r.state.key for r in reached.values() if r.state.key is not None]
    changes: dict[str, Files] = {}
    for name, found in reached.items():
        files, added = wanted_files(found, reached, public, head)
        _warn_of_stale(found, reached, head, runtime)
        if files:
            changes[name] = files
            for file, what in added.items():
                head.record.host(name).note(file, what)
    head.record.save()

    def task(session: Session, host: Host) -> Result:
        found = reached[host.name]
        calls = [node.put(file, found.state.files[file][1], data) for file, data in changes[host.name].items()]
        done = node.change(session, calls, cancel=runtime.cancel)
        for file, data in changes[host.name].items():
            found.state.files[file] = (data, done.sums[file])
            if file not in found.changed:
                found.changed.append(file)
        return Result(host.name, ok=True)

    return on_each([reached[name].plan.host for name in changes], runtime, task, what="mesh")


def wanted_files(
    found: Reached, reached: Mapping[str, Reached], public: list[PublicKey], head: Head
) -> tuple[Files, dict[str, Added]]:
    """({file: its new bytes} for files that have to change, {file: what is new in it}). Pure."""
    plan, state = head.plan, found.state
    known = state.data("known_hosts")
    for other in reached.values():
        if other.plan.name in plan.options.replace:
            known = known_hosts.forget(known, other.plan.names, keep=other.host_key)
    keys, keys_added = add_keys(state.data("authorized_keys"), public)
    known, known_added = known_hosts.add(known, [(r.plan.names, r.host_key) for r in reached.values()])
    before = state.data("config")
    config = config_block.put(before, plan.node_block_name, plan.node_block(state.key_name),
                              f"{found.plan.name}:~/.ssh/config")
    wanted = {"authorized_keys": keys, "known_hosts": known, "config": config}
    files = {name: data for name, data in wanted.items() if data is not None and data != state.data(name)}
    added = {"authorized_keys": keys_added, "known_hosts": known_added,
             "config": Added(created=before is None)}
    return files, {name: added[name] for name in files}


def _warn_of_stale(found: Reached, reached: Mapping[str, Reached], head: Head, runtime: Runtime) -> None:
    """A node may remember a host as it was before it was installed anew; the head has verified who it is now."""
    for other in reached.values():
        if other.plan.name in head.plan.options.replace:
            continue
        on_file = [k for n in other.plan.names for k in known_hosts.keys_of(found.state.data("known_hosts"), n)]
        stale = {str(k) for k in on_file if k.type == other.host_key.type and k != other.host_key}
        if stale:
            runtime.emit(Notice(
                "warning", f"it also knows another key for {other.plan.name}: {', '.join(sorted(stale))}",
                host=found.plan.name, hint=f"fleet setup-ssh --replace-key {other.plan.name} removes it everywhere"))
