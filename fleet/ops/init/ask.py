"""Collects the keys of hosts, then their facts, then the addresses at which the hosts reach each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fleet.each import failed, on_each
from fleet.errors import FleetError
from fleet.model import Host, Inventory, Result
from fleet.ops import pairs, setup_ssh
from fleet.ops.facts import HasFacts, ask, probe_specs
from fleet.ops.init.choose import Address
from fleet.ops.sessions import Sessions
from fleet.ops.setup_ssh import SetupRuntime
from fleet.ops.setup_ssh.enrol import settle
from fleet.requests.hosts import Check, SetupSsh
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.ssh.transport import SshTransport


def trust(inventory: Inventory, tofu: bool, runtime: SetupRuntime) -> tuple[Inventory, dict[str, Result]]:
    """Returns (the inventory with confirmed host keys, host name -> failure of each host that is not trusted). Gateways
    outside the inventory are added to its `unselected`.

    The rules are those of setup-ssh: a key on file or in the inventory must match. Writes nothing."""
    assert isinstance(runtime.transport, SshTransport)
    failures = dict[str, Result]()
    for host in inventory.hosts:
        try:
            runtime.transport.route(host)
        except FleetError as error:  # ~/.ssh/config has a setting for this host that fleet does not support
            failures[host.name] = failed(host, error)
    clear = replace(inventory, hosts=tuple(host for host in inventory.hosts if host.name not in failures))
    setup = setup_ssh.plan(clear, clear, SetupSsh(mesh=False, tofu=tofu), Path.home())
    for level in setup.levels:
        all_hosts = (*inventory.hosts, *inventory.unselected)
        with closing(SshTransport(runtime.transport.options, hosts=all_hosts)) as transport:
            settled = settle(level, setup.request, transport, runtime)
        failures.update(settled.failures)
        keys = {plan.name: key.fingerprint for plan, key in settled.accepted}
        pinned = (replace(host, host_key=host.host_key or keys.get(host.name)) for host in inventory.hosts)
        ways = [replace(each.host, host_key=key.fingerprint) for each, key in settled.accepted if each.gateway]
        inventory = replace(inventory, hosts=tuple(pinned), unselected=(*inventory.unselected, *ways))
    return inventory, failures


def facts(inventory: Inventory, folder: str, python: str, runtime: Runtime) -> dict[str, Result]:
    """Returns host name -> result with HasFacts. folder: the working folder to look for. python: the interpreter of
    hosts without one in the inventory."""
    specs = probe_specs(inventory, Check())

    def task(session: Session, host: Host) -> Result:
        spec = {**specs[host.name], "python": host.python or python, "workdir": folder, "survey": True}
        return Result(host.name, ok=True, exit_status=0, answer=HasFacts(ask(session, spec, runtime.cancel)))

    return {result.host: result for result in on_each(inventory.hosts, runtime, task, what="asking")}


NEIGHBOURS = 8  # number of hosts that each host connects to: the next ones in a ring


def reach(
    hosts: Sequence[Host], candidates: Mapping[str, Sequence[Address]], sessions: Sessions
) -> dict[str, set[str]]:
    """Returns host name -> those of its candidate addresses at which every host that tried reached it."""
    if len(hosts) < 2:
        return {}
    names = [host.name for host in hosts]
    at = {name: [each.text for each in candidates[name]] for name in names}
    twice = names + names
    wanted = {name: twice[n + 1 : n + min(NEIGHBOURS + 1, len(names))] for n, name in enumerate(names)}
    how = pairs.visit(hosts, at, [wanted], sessions).how
    good = {(to, text) for (_, to, text), it in how.items() if it == "open"}
    good -= {(to, text) for (_, to, text), it in how.items() if it != "open"}
    return {name: {text for text in at[name] if (name, text) in good} for name in names}
