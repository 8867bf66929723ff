"""Runs `fleet setup-ssh`: sets up keys, authorized_keys, known_hosts and an ssh config on head and nodes, and verifies
every pair.

A host's key is verified before anything is sent to it, and the head's key is tried before a password. Every change is
recorded before it is made. A second run changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from dataclasses import replace

from fleet.answers.hosts import BrokenPair, HostKeyOf, Pairs, SetUp, SetUpAll, Undone
from fleet.each import failed
from fleet.errors import Interrupted
from fleet.events import Round
from fleet.model import Host, Report, Result, exit_code_of
from fleet.ops.setup_ssh import verify
from fleet.ops.setup_ssh.enrol import settle
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.install import Reached, install, mesh
from fleet.ops.setup_ssh.passwords import SetupRuntime
from fleet.ops.setup_ssh.planning import HostPlan, SetupPlan, plan
from fleet.ops.setup_ssh.record import Record, my_turn
from fleet.ops.setup_ssh.verify import Pair
from fleet.runtime import Runtime
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.transport import SshTransport

__all__ = ["SetupPlan", "SetupRuntime", "plan", "run"]


def run(plan: SetupPlan, runtime: SetupRuntime) -> Report:
    """Executes the plan. A failure of one host does not stop the others.

    Report.data: "changed" (bool), "head" ({"changed": [...]}), "pairs" ({"verified", "failed": [{"from", "to",
    "reason"}]}). Each host's data: "host_key", "changed".
    """
    with my_turn(plan.source, runtime):
        return _run(plan, runtime)


def _run(plan: SetupPlan, runtime: SetupRuntime) -> Report:
    record = Record.load(plan.home, plan.source)
    record.take_over(plan.full_inventory)
    if record.hosts:
        record.save_all()
    head = Head(plan, record, plan.request.limit)
    head.check()
    reached: dict[str, Reached] = {}
    failures: dict[str, Result] = {}
    how: dict[str, str] = {}
    transport = runtime.connect(runtime.passwords.take)
    assert isinstance(transport, SshTransport)
    transport.config = SshConfig(plan.home, edit=head.with_block)
    runtime.transport = transport
    with closing(transport):
        for level in plan.levels:
            settled = settle(level, plan.request, transport, runtime)
            head.enrol([(p, key) for p, key in settled.accepted if p.name in plan.request.replace_key], instead=True)
            head.enrol(settled.accepted)
            how.update(settled.how)
            failures.update(settled.failures)
            if settled.how:
                head.prepare()
                found, results = install([p for p in level if p.name in settled.how], head, runtime)
                reached.update(found)
                failures.update({r.host: r for r in results if not r.ok})
        # the ssh config gets an entry for a host only after the host has accepted a key of the head
        head.leads |= reached.keys() - failures.keys()
        hosts = {h.name: reached[h.name] for h in _in_order(plan, head.leads & reached.keys()) if not h.gateway}
        if plan.request.mesh and hosts:
            failures.update({r.host: r for r in mesh(hosts, head, runtime) if not r.ok})
        pairs: list[Pair] = []
        if not runtime.cancel.is_set():
            head.write_block()
            pairs = _verify(plan, [r for n, r in hosts.items() if n not in failures], runtime)
    if runtime.cancel.is_set():
        raise Interrupted("interrupted", hint="run it again: it goes on where it was")
    return _report(plan, head, reached, failures, how, pairs)


def _in_order(plan: SetupPlan, names: Collection[str]) -> list[HostPlan]:
    """Returns the hosts and gateways in `names`, in inventory order. Gateways outside the inventory are last."""
    order = {e.name: i for i, e in enumerate(plan.node_entries)}
    return sorted((h for h in plan.all if h.name in names), key=lambda h: (h.gateway, order.get(h.name, 0)))


def _verify(plan: SetupPlan, hosts: list[Reached], runtime: Runtime) -> list[Pair]:
    if not hosts:
        return []
    runtime.emit(Round("checking that this machine reaches every host", ()))
    limit = plan.request.limit
    pairs = verify.from_head([r.plan.name for r in hosts], plan.home, limit, runtime)
    if plan.request.mesh:
        keyless = {r.plan.name: f"{verify.NO_KEY}: {r.state.no_key}" for r in hosts if r.state.key is None}
        pairs += verify.among([r.plan.host for r in hosts], keyless, limit, runtime)
    return pairs


def _report(
    plan: SetupPlan,
    head: Head,
    reached: dict[str, Reached],
    failures: dict[str, Result],
    how: dict[str, str],
    pairs: list[Pair],
) -> Report:
    results = []
    for host_plan in _in_order(plan, reached.keys() | failures.keys()):
        name = host_plan.name
        found = reached.get(name)
        mine = [p for p in pairs if p.source == name or (p.source == verify.HEAD and p.target == name)]
        result, answer = failures.get(name) or _pairs_result(host_plan.host, mine), SetUp()
        if found is not None:
            key = HostKeyOf(found.host_key.type, found.host_key.fingerprint, how.get(name, "known"))
            answer = SetUp(key, found.changed)
        results.append(replace(result, answer=answer))
    broken = [p for p in pairs if p.reason is not None]
    whole = SetUpAll(
        changed=bool(head.changed or any(r.changed for r in reached.values())),
        head=Undone(list(dict.fromkeys(head.changed))),
        pairs=Pairs(
            verified=sum(p.source != verify.HEAD and p.reason is None for p in pairs),
            from_head=sum(p.source == verify.HEAD and p.reason is None for p in pairs),
            failed=[BrokenPair(p.source, p.target, p.reason) for p in broken],
        ),
    )
    return Report("setup-ssh", tuple(results), exit_code_of(tuple(results)), answer=whole)


def _pairs_result(host: Host, pairs: list[Pair]) -> Result:
    from_head = [p for p in pairs if p.source == verify.HEAD and p.reason is not None]
    own = [p for p in pairs if p.source == host.name]
    broken = [p for p in own if p.reason is not None]
    if from_head:
        return failed(host, verify.as_error(verify.HEAD, from_head, 1))
    if broken:
        return failed(host, verify.as_error(host.name, broken, len(own)))
    return Result(host.name, ok=True)
