"""The plan of a run: who runs which ranks, started how. Pure; --dry-run prints it, golden tests compare it."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fleet.engines import engine
from fleet.engines.base import Start, World
from fleet.errors import UsageError
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inventory, Job, Node
from fleet.ops.launch.options import LaunchOptions
from fleet.ops.launch.record import RunRecord, whoami
from fleet.ops.plans import Line, PerHost, around
from fleet.rules.units import counted

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
PORTS = range(15000, 29500)  # below every system's ephemeral range, and not torch's own default 29500


@dataclass(frozen=True)
class Known:
    """What preflight learned about a node. gpus, cpus: counts. address, interface: towards the master. code: state
    folder and digest of what a sync delivered there. seen: facts that are kept in run.json."""

    python: str | None = None
    gpus: int = 0
    cpus: int = 1
    address: str | None = None
    interface: str | None = None
    code: tuple[str, str] | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodePlan(Node):
    """What one node runs. env: literal values; their names may be shown, their values never."""

    start: Start
    env: Mapping[str, str]
    env_expand: Mapping[str, str]
    workdir: str

    def describe(self) -> dict[str, Any]:
        return {
            "node_rank": self.node_rank,
            "ranks": list(self.ranks),
            "argv": [str(word) for word in self.start.argv],
            "command": list(self.start.command),
            "workdir": self.workdir,
            "activate": self.host.activate,
            "env": sorted({*self.env, *self.env_expand}),
        }


@dataclass(frozen=True)
class Plan:
    """A whole run. attempt: how many starts of it came before. master_port 0 never occurs: an automatic one is the run
    id's first candidate. spares: hosts that stand by to take a lost one's place."""

    inventory: Inventory
    run_id: str
    job: Job
    options: LaunchOptions
    world: World
    nodes: tuple[NodePlan, ...]
    facts: Mapping[str, Known] = field(default_factory=dict)
    attempt: int = 0
    spares: tuple[Host, ...] = ()

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(n.host for n in self.nodes)

    def node(self, host: str) -> NodePlan:
        return next(n for n in self.nodes if n.host.name == host)

    def describe(self) -> dict[str, Any]:
        """The plan as JSON: names of variables, never their values."""
        return {
            "run": self.run_id,
            "engine": self.job.engine,
            "world_size": self.world.size,
            "master": self.world.master,
            "logs": str(self.options.runs_dir / self.run_id),
            "lease": self.options.lease,
            "grace": self.options.grace,
            "node_timeout": self.options.node_timeout,
            **({"stall_timeout": self.options.stall_timeout} if self.options.stall_timeout else {}),
            **({"notes": list(self.job.notes)} if self.job.notes else {}),
            "hosts": {n.host.name: n.describe() for n in self.nodes},
            **({"spares": [host.name for host in self.spares]} if self.spares else {}),
        }

    def lines(self) -> Iterator[Line]:
        """Of what the hosts are given one by one, each its own; the rest once."""
        plan = self.describe()
        yield (
            f"run {self.run_id}: {counted(self.world.size, 'rank')}, engine {self.job.engine}, "
            f"master {plan['master']}, logs in {plan['logs']}"
        )
        yield from self.job.notes
        nodes: dict[str, dict[str, Any]] = plan["hosts"]
        for name, node in nodes.items():
            ranks = node["ranks"]
            span = f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
            yield f"{name}: node rank {node['node_rank']}, {span}, in {node['workdir']}"
        if self.spares:
            yield f"{fold(host.name for host in self.spares)}: stands by, to take a lost host's place"
        own = _own_word([node["argv"] for node in nodes.values()], [str(node["node_rank"]) for node in nodes.values()])
        yield PerHost(
            {name: _told(node, node["argv"]) for name, node in nodes.items()},
            {name: _told(node, own(node["argv"])) for name, node in nodes.items()},
        )

    def record(self, started: float) -> RunRecord:
        """What is known of it from its start on. started: seconds since the epoch."""
        job, options = self.job, self.options
        return RunRecord(
            self.run_id,
            tuple(Node(n.host, n.node_rank, n.local_world_size, n.first_rank) for n in self.nodes),
            job.engine,
            job.script,
            self.world.master,
            options.runs_dir / self.run_id,
            None if options.detach else options.lease,
            options.grace,
            options.node_timeout,
            self.world.least > 0,
            whoami(),
            started,
            self.attempt,
            0 if self.world.least else job.max_restarts,
            options.stall_timeout,
            self.world.least,
            len(self.spares),
        )

    def refine(self, facts: Mapping[str, Known], master: tuple[str, int] | None = None) -> Plan:
        """With what preflight found of each host, and where ranks meet: address and port. UsageError where the job does
        not fit what is there."""
        return replace(plan(self.inventory, self.job, self.options, self.run_id, facts, master), attempt=self.attempt)

    def whole(self) -> Plan:
        """As if the spares took part."""
        return self._on((*self.hosts, *self.spares), len(self.nodes) + len(self.spares))

    def without(self, names: Collection[str]) -> Plan:
        """Spares in the place of these hosts; node ranks follow the inventory's order all the same."""
        return self._on([host for host in (*self.hosts, *self.spares) if host.name not in names], len(self.nodes))

    def _on(self, hosts: Iterable[Host], nnodes: int) -> Plan:
        kept = {host.name for host in hosts}
        hosts = tuple(host for host in self.inventory.hosts if host.name in kept)
        options = replace(self.options, nnodes=nnodes, spares=len(hosts) - nnodes)
        return replace(self, inventory=replace(self.inventory, hosts=hosts), options=options).refine(self.facts)


def _told(node: Mapping[str, Any], argv: Sequence[str]) -> list[str]:
    return ["starts", f"engine: {shlex.join(argv)}", f"each rank: {shlex.join(node['command'])}", *around(node)]


def _own_word(argvs: Sequence[Sequence[str]], ranks: Sequence[str]) -> Callable[[Sequence[str]], list[str]]:
    """Where the engines' commands have nothing but the node rank that is their own: a command with NODE_RANK there."""
    for place, words in enumerate(zip(*argvs, strict=False)):
        stems = {word.removesuffix(rank) for word, rank in zip(words, ranks, strict=True)}
        if len(set(words)) > 1 and len(stems) == 1:
            brief = f"{stems.pop()}NODE_RANK"
            return lambda argv: [*argv[:place], brief, *argv[place + 1 :]]
    return list


def plan(
    inventory: Inventory,
    job: Job,
    options: LaunchOptions,
    run_id: str,
    facts: Mapping[str, Known] = MappingProxyType({}),
    master: tuple[str, int] | None = None,
) -> Plan:
    """Pure: inventory order is node-rank order. UsageError for a job that no plan can be made of. facts, master: see
    Plan.refine."""
    chosen = engine(job.engine)
    chosen.check(job)
    if options.least and not chosen.elastic:
        raise UsageError(
            f"--nnodes {options.least}:{options.nnodes}: engine {job.engine} is not elastic",
            hint=f"--engine torchrun is; or --nnodes {options.nnodes}",
        )
    if options.least and options.spares:
        raise UsageError(
            f"--spares does not go together with --nnodes {options.least}:{options.nnodes}",
            hint=f"--nnodes {options.least} --spares N replaces a lost node; MIN:MAX goes on without it",
        )
    nodes = tuple(_nodes(inventory, job, options, facts))
    job = _met_by_name(job, nodes)
    address, port = master or (master_address(nodes[0].host, job, len(nodes)), job.master_port)
    addresses = {name: f.address for name, f in facts.items() if f.address}
    slots = {node.host.name: ranks_on(node.host, job, options, facts.get(node.host.name)) for node in nodes}
    world = World(run_id, nodes, address, port or candidate_ports(run_id)[0], addresses, slots, options.least)
    plans = []
    for node in nodes:
        host, known = node.host, facts.get(node.host.name, Known())
        env = {**inventory.env_for(host), **job.env}
        if known.interface:
            # gloo and NCCL would take whatever the host's name resolves to; the user's own choice stays
            env = {**{name: known.interface for name in INTERFACE_VARIABLES if name not in job.env_expand}, **env}
        start = chosen.start(job, world, node, known.python or python_of(host, job))
        for name in set(start.env) & ({*job.env, *job.env_expand}):
            raise UsageError(f"--env {name}: engine '{job.engine}' sets it itself", hint=f"use {_instead(name)}")
        env = {**{k: v for k, v in env.items() if k not in job.env_expand}, **start.env}
        part = (host, node.node_rank, node.local_world_size, node.first_rank)
        plans.append(NodePlan(*part, start, env, job.env_expand, workdir_of(host, job, options)))
    return Plan(inventory, run_id, job, options, world, tuple(plans), facts, spares=_spares(inventory, options))


def _nodes(inventory: Inventory, job: Job, options: LaunchOptions, facts: Mapping[str, Known]) -> list[Node]:
    hosts = inventory.hosts
    wanted = max(1, options.least or options.nnodes or 1) + options.spares
    if (options.nnodes or options.spares) and wanted > len(hosts):
        asked = [f"--nnodes {options.least or options.nnodes}"] * (options.nnodes is not None)
        asked += [f"--spares {options.spares}"] * (options.spares > 0)
        raise UsageError(f"{' '.join(asked)}: only {len(hosts)} hosts are selected", hint="see 'fleet hosts'")
    hosts = hosts[: len(hosts) - options.spares if options.nnodes is None else options.nnodes]
    if not hosts:
        raise UsageError("no host is selected", hint="see 'fleet hosts'")
    nodes: list[Node] = []
    first = 0
    for node_rank, host in enumerate(hosts):
        count = engine(job.engine).ranks(job) or ranks_on(host, job, options, facts.get(host.name))
        nodes.append(Node(host, node_rank, count, first))
        first += count
    return nodes


def _spares(inventory: Inventory, options: LaunchOptions) -> tuple[Host, ...]:
    first = len(inventory.hosts) - options.spares if options.nnodes is None else options.nnodes
    return inventory.hosts[first : first + options.spares]


def ranks_on(host: Host, job: Job, options: LaunchOptions, facts: Known | None) -> int:
    """Ranks of a host: --nproc-per-node, else its slots, else one per device, else 1. Unknown counts as 1."""
    if job.nproc_per_node is not None:
        return job.nproc_per_node
    gpus = len(host.devices) if host.devices is not None else (facts.gpus if facts else 0)
    if options.nproc == "cpu":
        return max(1, facts.cpus if facts else 1)
    if options.nproc == "gpu" and facts is not None and not gpus:
        raise UsageError(f"--nproc-per-node gpu: host {host.name} has no GPU", hint="give a number, or 'cpu'")
    if options.nproc in ("gpu", "auto"):
        return max(1, gpus or (facts.cpus if facts and options.nproc == "auto" else 1))
    if host.slots is not None:
        return min(host.slots, len(host.devices)) if host.devices is not None else host.slots
    return max(1, gpus)


def _met_by_name(job: Job, nodes: Sequence[Node]) -> Job:
    """--master-addr HOST means that host, whose name need not say anything to the others; it can only be node 0. A
    number means itself."""
    first = nodes[0].host.name
    if not job.master_addr or ":" in job.master_addr or job.master_addr.replace(".", "").isdecimal():
        return job
    if job.master_addr == first:
        return replace(job, master_addr=None)
    if job.master_addr in [node.host.name for node in nodes]:
        raise UsageError(
            f"--master-addr {job.master_addr}: ranks meet at node rank 0, and that is {first}",
            hint=f"leave it away, or write {job.master_addr} first in the inventory",
        )
    return job


def master_address(first: Host, job: Job, nnodes: int) -> str:
    """Where ranks meet: --master-addr, else node 0's data address; a run on one node stays inside it."""
    if job.master_addr:
        return job.master_addr
    return "127.0.0.1" if nnodes == 1 else first.data_address or first.address


def candidate_ports(run_id: str, attempt: int = 0, count: int = 5) -> list[int]:
    """Ports for an automatic --master-port, derived from the run id: two runs hardly ever meet, a plan repeats. Each
    attempt has its own: nothing of the last one answers there."""
    digest = hashlib.sha256((run_id + f"/{attempt}" * (attempt > 0)).encode()).digest()
    return [PORTS[int.from_bytes(digest[4 * i : 4 * i + 4], "big") % len(PORTS)] for i in range(count)]


def python_of(host: Host, job: Job) -> str:
    return job.python or host.python or "python3"


def workdir_of(host: Host, job: Job, options: LaunchOptions) -> str:
    return job.workdir or host.workdir or options.cwd


def _instead(name: str) -> str:
    return {"MASTER_ADDR": "--master-addr", "MASTER_PORT": "--master-port", "CUDA_VISIBLE_DEVICES": "-w HOST:0,2"}.get(
        name, "another name"
    )
