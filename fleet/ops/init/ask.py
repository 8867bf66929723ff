"""What hosts are asked: their keys, then their facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fleet.each import failed, on_each
from fleet.errors import FleetError
from fleet.model import Host, Inventory, Result
from fleet.ops import check, setup_ssh
from fleet.ops.facts import ask
from fleet.ops.setup_ssh import SetupOptions, SetupPlan, SetupRuntime
from fleet.ops.setup_ssh.enrol import enrol
from fleet.ops.setup_ssh.planning import HostPlan
from fleet.protocol.messages.facts import Facts
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.ssh.hostkeys import HostKey
from fleet.transport.ssh.transport import SshTransport


class _Pins:
    """Keeps the host keys that are accepted, for the inventory."""

    def __init__(self, plan: SetupPlan) -> None:
        self.plan = plan
        self.keys: dict[str, str] = {}

    def enrol(self, wanted: Iterable[tuple[HostPlan, HostKey]], *, instead: bool = False) -> None:
        self.keys.update((plan.name, key.fingerprint) for plan, key in wanted)


def trust(inventory: Inventory, tofu: bool, runtime: SetupRuntime) -> tuple[Inventory, dict[str, Result]]:
    """The hosts with the keys that were confirmed, and those that are not to be trusted. By setup-ssh's rules: what is
    on file here or in the inventory is held to, and nothing is written."""
    assert isinstance(runtime.transport, SshTransport)
    failures = dict[str, Result]()
    for host in inventory.hosts:
        try:
            runtime.transport.route(host)
        except FleetError as error:  # what the ssh config says of it is nothing that fleet does
            failures[host.name] = failed(host, error)
    clear = replace(inventory, hosts=tuple(host for host in inventory.hosts if host.name not in failures))
    setup = setup_ssh.plan(clear, clear, SetupOptions(mesh=False, tofu=tofu), Path.home())
    for level in setup.levels:
        pins = _Pins(setup)
        transport = SshTransport(runtime.transport.options, hosts=(*inventory.hosts, *inventory.unselected))
        try:
            failures.update(enrol([each for each in level if not each.gateway], pins, transport, runtime)[1])
        finally:
            transport.close()
        pinned = (replace(host, host_key=host.host_key or pins.keys.get(host.name)) for host in inventory.hosts)
        inventory = replace(inventory, hosts=tuple(pinned))
    return inventory, failures


def facts(inventory: Inventory, folder: str, python: str, runtime: Runtime) -> dict[str, Result]:
    """What the hosts tell, under data["facts"]. folder, python: whether they have it, too."""
    specs = check.plan(inventory, check.CheckOptions()).specs

    def task(session: Session, host: Host) -> Result:
        spec = {**specs[host.name], "python": host.python or python, "workdir": folder, "survey": True}
        return Result(host.name, ok=True, exit_status=0, data={"facts": ask(session, spec, runtime.cancel)})

    return {result.host: result for result in on_each(inventory.hosts, runtime, task, what="asking")}


def told(results: Mapping[str, Result]) -> dict[str, Facts]:
    """The facts of those that answered."""
    return {name: result.data["facts"] for name, result in results.items() if result.ok}
