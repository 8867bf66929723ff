"""What preflight found, judged by the rules that `fleet check` has, and what a launch says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.engines import engine
from fleet.ops.launch.plan import NodePlan, Plan
from fleet.rules.judge import judge, refusing
from fleet.rules.rule import Finding, Part, Want
from fleet.rules.view import view

DEADLINE_SECONDS = 20.0  # of its steps on a node


def findings(plan: Plan, facts: Mapping[str, Mapping[str, Any]], complete: bool = True) -> list[Finding]:
    """facts: host name -> what fleet/node/facts/probe.py tells. complete: all nodes answered; if not, that they could
    not meet says nothing."""
    nodes = {node.host.name: node for node in plan.nodes}
    return refusing(
        judge({name: view(facts[name], want(plan, nodes[name], complete)) for name in nodes if name in facts})
    )


def want(plan: Plan, node: NodePlan, met: bool) -> Want:
    """What the plan wants of a host. Ranks that the command line asks for say nothing about the inventory's slots."""
    host, job, chosen = node.host, plan.job, engine(plan.job.engine)
    by_slots = job.nproc_per_node is None and plan.options.nproc == "slots" and not chosen.ranks(job)
    ranks = None if by_slots else node.local_world_size
    on_gpus = plan.world.size > 1 and chosen.on_gpus(job)
    part = Part(node.node_rank, ranks, chosen.kind(job), met, on_gpus, plan.options.share)
    return Want(host.name, host.slots if by_slots else None, host.devices, chosen.needs(job), DEADLINE_SECONDS, part)
