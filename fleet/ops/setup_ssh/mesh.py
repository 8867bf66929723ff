"""Every node to every node: keys, host keys and a config block, computed on the head, one write a node."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.each import failed, on_each
from fleet.errors import FleetError, Reason
from fleet.events import Notice
from fleet.model import Host, Result
from fleet.ops.setup_ssh import config_block, known_hosts, node
from fleet.ops.setup_ssh.authorize import PublicKey, add_keys
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.install import Reached
from fleet.runtime import Runtime
from fleet.transport.base import Session

Files = dict[str, bytes]


def mesh(reached: Mapping[str, Reached], head: Head, runtime: Runtime) -> tuple[Result, ...]:
    """Bring the three files of every host reached up to date; one Result a host that needed a change."""
    public = [r.state.key for r in reached.values() if r.state.key is not None]
    changes: dict[str, Files] = {}
    broken: list[Result] = []
    for name, found in reached.items():
        try:
            files, added = wanted_files(found, reached, public, head)
        except FleetError as error:  # a block whose markers somebody damaged
            broken.append(failed(found.plan.host, error))
            continue
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

    hosts = [reached[name].plan.host for name in changes]
    return (*broken, *on_each(hosts, runtime, task, what="letting the hosts in to each other"))


def wanted_files(
    found: Reached, reached: Mapping[str, Reached], public: list[PublicKey], head: Head
) -> tuple[Files, dict[str, list[str]]]:
    """({file: its new bytes} for files that have to change, {file: what is new in it}). Pure."""
    plan, state = head.plan, found.state
    known = state.data("known_hosts")
    for other in reached.values():
        if other.plan.name in plan.options.replace:
            known = known_hosts.forget(known, other.plan.names, keep=other.host_key)
    keys, keys_added = add_keys(state.data("authorized_keys"), public)
    known, known_added = known_hosts.add(known, [(r.plan.names, r.host_key) for r in reached.values()])
    block = config_block.only(plan.node_block(state.key_name), head.leads)
    config = config_block.put(state.data("config"), plan.node_block_name, block, f"{found.plan.name}:~/.ssh/config")
    wanted = {"authorized_keys": keys, "known_hosts": known, "config": config}
    files = {name: data for name, data in wanted.items() if data is not None and data != state.data(name)}
    added: dict[str, list[str]] = {"authorized_keys": keys_added, "known_hosts": known_added, "config": []}
    return files, {name: added[name] for name in files}


def _warn_of_stale(found: Reached, reached: Mapping[str, Reached], head: Head, runtime: Runtime) -> None:
    """A node may remember a host as it was before it was installed anew; the head has verified who it is now."""
    kept = head.plan.options.replace
    wanted = {n: (r.plan.name, r.host_key) for r in reached.values() if r.plan.name not in kept for n in r.plan.names}
    stale: dict[str, set[str]] = {}
    for name, key in known_hosts.plain_keys(found.state.data("known_hosts")):
        host, right = wanted.get(name, ("", key))
        if key.type == right.type and key != right:
            stale.setdefault(host, set()).add(str(key))
    for host, keys in stale.items():
        said = Reason("it also knows another key for {other}: {keys}", other=host, keys=", ".join(sorted(keys)))
        runtime.emit(
            Notice(
                "warning",
                said,
                host=found.plan.name,
                hint=Reason("fleet setup-ssh --replace-key {other} removes it everywhere", other=host),
            )
        )
