"""Runs preflight: one round trip to all nodes at once. Reports all findings together. Nothing is started."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from fleet.engines import engine
from fleet.errors import FleetError
from fleet.events import Notice
from fleet.model import Host
from fleet.node.base.errors import on_failure
from fleet.ops import pairs
from fleet.ops.facts import ask
from fleet.ops.run.plan.findings import DEADLINE_SECONDS, findings, in_the_way, refuse
from fleet.ops.run.plan.here import HeadCode
from fleet.ops.run.plan.placement import Known
from fleet.ops.run.plan.plan import Plan
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.facts import Facts
from fleet.rules.launch import MASTER
from fleet.rules.neighbours import LIVE
from fleet.rules.view import NOTABLE
from fleet.transport.base import Cancel

# facts that run.json records, because a run may depend on them
KEPT = frozenset(
    ("hostname", "user", "os", "kernel", "arch", "glibc", "driver", "cuda_toolkit", "nccl_library", "cpu", "memory")
    + ("python", "packages", "torch", "deepspeed", "gpus", "script", "code")
)
# options of scripts for a configuration file of DeepSpeed. A rank that does not find that file dies
CONFIG_OPTION = re.compile(r"--(?:deepspeed|ds)(?:[-_]config)?(?:=(.*))?")
MAX_CPUS = 4096  # more ranks than any node runs, whatever a broken one reports


def preflight(plan: Plan, sessions: Sessions) -> Plan:
    """Returns the plan with the facts of the nodes. Raises ConnectError or PreflightError after all findings were
    emitted. If an automatic port is taken, tries the next one."""
    first = plan.hosts[0].name
    address = plan.world.master_addr
    if len(plan.hosts) > 1:
        address = pairs.master(plan.hosts[0], sessions.runtime.transport, plan.request.master_addr)
    for port in plan.ports:
        raw, errors = ask_all(plan, (address, port), sessions)
        if errors or not port_is_taken(raw[first]):
            break
    if not errors and not port_is_taken(raw[first]) and len(plan.hosts) > 1:
        pairs.look(plan.hosts, raw, sessions)
    emit = sessions.runtime.emit
    of_a_run = ((raw.get(first, {}).get("port") or {}).get("holder") or {}).get("run_id")
    taken = (LIVE, *[MASTER] * bool(of_a_run))
    held = in_the_way(plan, {name: node.get("runs") or () for name, node in raw.items()})
    held |= {(first, of_a_run)} if of_a_run else frozenset()
    refuse(plan, findings(plan, raw, not errors, emit), errors, emit, taken, held)
    for line in HeadCode(plan).compare_with_nodes(raw)[1] if not plan.request.sync else ():
        sessions.runtime.emit(Notice("warning", line))
    network = raw[first].get("network") or {}
    return plan.refine({name: known_of(node) for name, node in raw.items()}, (network.get("master") or address, port))


def port_is_taken(raw: Facts) -> bool:
    return (raw.get("port") or {}).get("ok") is False


def ask_all(plan: Plan, master: tuple[str, int], sessions: Sessions) -> tuple[dict[str, Facts], dict[str, FleetError]]:
    """Returns (facts, errors) by host name. master: address and port. If a host fails, the others stop waiting for it
    at once."""
    token = secrets.token_hex(16)
    hurry = Cancel()

    def connect_and_ask(host: Host) -> Facts:
        spec = spec_for(plan, host, master, token)
        with on_failure(hurry.set):  # no host needs to wait for this one any more
            facts = ask(sessions.get(host), spec, sessions.runtime.cancel, hurry=hurry)
            if port_is_taken(facts):
                hurry.set()  # nodes cannot meet at this port: none needs to wait longer
        return facts

    return sessions.each(plan.hosts, connect_and_ask, "preflight")


def spec_for(plan: Plan, host: Host, master: tuple[str, int], token: str) -> dict[str, Any]:
    """Returns the spec of fleet/node/preflight/probe.py."""
    node = plan.node(host.name)
    chosen = engine(plan.job.engine)
    kind = chosen.kind(plan.job)
    return {
        "node_rank": node.node_rank,
        "master": {
            "address": master[0],
            "port": master[1],
            "token": token,
            "is_me": node.node_rank == 0,
            "peers": len(plan.hosts) - 1,
        },
        "way": pairs.way(plan.hosts, host, master[0]),
        "run": plan.run_id,
        "script": plan.job.script,
        "configs": configs_of(plan.job.args),
        "workdir": node.workdir,
        "python": plan.request.training_of(host)[0],
        "activate": node.activate,
        "container": None if plan.contained else node.container,
        "container_args": list(plan.request.container_args),
        "env": dict(node.env),
        "env_expand": dict(node.env_expand),
        "unset": plan.request.unset,
        "program": kind == "program",
        "module": kind == "module",
        "modules": list(chosen.needs(plan.job)),
        "packages": [*chosen.needs(plan.job), *NOTABLE],
        "unread": list(chosen.unread(plan.job)),
        "deadline": DEADLINE_SECONDS,
    }


def configs_of(args: Sequence[str]) -> list[str]:
    """Returns the paths of DeepSpeed's configuration files among a script's arguments."""
    named = [
        found[1] or value
        for option, value in zip(args, [*args[1:], ""], strict=False)
        if (found := CONFIG_OPTION.fullmatch(option))
    ]
    return [path for path in named if path[:1] != "-" and path.endswith((".json", ".yaml", ".yml"))]


def known_of(facts: Facts) -> Known:
    """Returns the facts of a node that its launch uses."""
    network, code = facts.get("network") or {}, facts.get("code")
    return Known(
        python=facts.get("python", {}).get("path"),
        gpus=len(facts.get("gpus", ())),
        cpus=min(facts.get("cpu", {}).get("usable") or 1, MAX_CPUS),
        address=network.get("address"),
        interface=network.get("interface"),
        nccl=network.get("nccl"),
        code=(code["state"], code["digest"]) if code and code["digest"] else None,
        seen={name: value for name, value in facts.items() if name in KEPT and value not in (None, {}, [])},
    )
