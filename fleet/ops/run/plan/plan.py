"""Makes the plan of a run: which host runs which ranks, and how they are started. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fleet.engines import check, engine
from fleet.engines.base import World
from fleet.errors import FleetError, UsageError
from fleet.inventory.nodeset import fold
from fleet.inventory.secret import masked_argv
from fleet.model import Host, Inventory, Job, Node
from fleet.node.base.record import whoami
from fleet.node.facts.way import NAMES as INTERFACE_VARIABLES
from fleet.ops.plans import Line, PerHost
from fleet.ops.run.kept.record import GRACE, STOP_GRACE, RunRecord, about_of
from fleet.ops.run.plan.options import check_containers, id_of, job_of
from fleet.ops.run.plan.placement import (
    Known,
    NodePlan,
    candidate_ports,
    count_of,
    counted_there,
    master_address,
    met_by_name,
    node_rank_marker,
    nodes_of,
    ranks_on,
    recorder,
)
from fleet.requests.launch import Launch
from fleet.requests.variables import OF_LAUNCHERS
from fleet.rules.judge import known_rules
from fleet.rules.units import counted

# every engine that starts ranks sets these for each rank
RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
# variable that the engine sets -> the option by which the user sets it
INSTEAD = {"MASTER_ADDR": "--master-addr", "MASTER_PORT": "--master-port", "CUDA_VISIBLE_DEVICES": "-w HOST:0,2"}
# Launch.counted -> the devices by which ranks are counted
COUNTED = {"slots": "GPUs", "gpu": "GPUs", "auto": "GPUs, or else CPUs,", "cpu": "CPUs"}


@dataclass(frozen=True)
class Plan:
    """Describes a whole run. facts: host -> facts of preflight. attempt: the number of earlier starts.
    world.master_port is never 0: without --master-port it is the first candidate of the run id. spares: hosts that may
    replace a lost host. absent: host -> why an elastic run begins without it. requested: the request before hosts were
    left out or replaced. typed: the typed command line. contained: the transport starts all processes of the run in the
    container; no supervisor does."""

    inventory: Inventory
    run_id: str
    job: Job
    request: Launch
    world: World
    nodes: tuple[NodePlan, ...]
    facts: Mapping[str, Known] = field(default_factory=dict)
    attempt: int = 0
    spares: tuple[Host, ...] = ()
    absent: Mapping[str, FleetError] = field(default_factory=dict)
    requested: Launch | None = None
    typed: tuple[str, ...] = ()
    contained: bool = False

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Returns the hosts on which the run starts."""
        return tuple(n.host for n in self.nodes if n.host.name not in self.absent)

    @property
    def ports(self) -> list[int]:
        """Returns the ports at which ranks may meet."""
        return [self.request.master_port] if self.request.master_port else candidate_ports(self.run_id, self.attempt)

    def node(self, host: str) -> NodePlan:
        return next(n for n in self.nodes if n.host.name == host)

    @property
    def guessed(self) -> list[str]:
        """Returns the hosts whose number of ranks is not known yet."""
        hosts = (node.host for node in self.nodes if node.host.name not in self.facts)
        return [host.name for host in hosts if counted_there(host, self.job, self.request)]

    def describe(self) -> dict[str, Any]:
        """Returns the plan as JSON, with the names of variables, and never their values."""
        return {
            "run": self.run_id,
            "engine": self.job.engine,
            "world_size": self.world.size,
            "master": self.world.master,
            "logs": str(self.request.runs / self.run_id),
            "lease": None if self.request.detach else self.request.lease,
            "grace": GRACE if self.request.grace is None else self.request.grace,
            "node_timeout": self.request.node_timeout,
            **({"stall_timeout": self.request.stall_timeout} if self.request.stall_timeout else {}),
            **({"max_log": self.request.max_log} if self.request.max_log else {}),
            **({"unset": [*OF_LAUNCHERS], "keep_env": [*self.request.keep_env]} if self.request.clean_env else {}),
            **({"notes": list(self.job.notes)} if self.job.notes else {}),
            **({"guessed": self.guessed} if self.guessed else {}),
            **({"wheels": self.request.wheels} if self.request.wheels else {}),
            **({"container_args": [*self.request.container_args]} if self.request.container_args else {}),
            "hosts": {n.host.name: n.describe() for n in self.nodes},
            **({"spares": [host.name for host in self.spares]} if self.spares else {}),
        }

    def masked(self) -> dict[str, Any]:
        """Returns the plan as JSON for events and files. Arguments of the script that may be secret are masked."""
        plan = self.describe()
        for node in plan["hosts"].values():
            node.update({name: masked_argv(node[name]) for name in ("argv", "command")})
        plan.update({name: masked_argv(plan[name]) for name in ("container_args",) if name in plan})
        return plan

    def lines(self) -> Iterator[Line]:
        """Yields the lines that --dry-run prints. A PerHost has a text for each host."""
        yield (
            f"run {self.run_id}: {counted(self.world.size, 'rank')}{' (a guess)' * bool(self.guessed)}, "
            f"engine {self.job.engine}, master {self.world.master}, logs in {self.request.runs / self.run_id}"
        )
        yield from self.job.notes
        if self.request.wheels:
            yield f"wheels: what {self.request.wheels} has would be installed first, where it is not"
        if self.request.clean_env:
            but = f", but {', '.join(self.request.keep_env)}" * bool(self.request.keep_env)
            yield f"ranks do not see {', '.join(OF_LAUNCHERS)}{but}"
        for node in self.nodes:
            span = f"ranks {node.ranks[0]}-{node.ranks[-1]}" if len(node.ranks) > 1 else f"rank {node.ranks[0]}"
            image = f", in a container of {node.container}" if node.container else ""
            yield f"{node.host.name}: node rank {node.node_rank}, {span}, in {node.workdir}{image}"
        if self.guessed:
            what = COUNTED[self.request.counted]
            yield f"{fold(self.guessed)}: 1 rank is a guess: a run counts {what} there, a plan asks no host"
        if self.spares:
            yield f"{fold(host.name for host in self.spares)}: stands by, to take a lost host's place"
        own = node_rank_marker([node.argv for node in self.nodes], [str(node.node_rank) for node in self.nodes])
        yield PerHost(
            {node.host.name: node.shown(node.argv) for node in self.nodes},
            {node.host.name: node.shown(own(node.argv)) for node in self.nodes},
        )

    def record(self, started: float) -> RunRecord:
        """Returns the record of the run. started: seconds since the epoch."""
        job, request = self.job, self.request
        return RunRecord(
            run_id=self.run_id,
            nodes=tuple(Node(n.host, n.node_rank, n.local_world_size, n.first_rank) for n in self.nodes),
            logs=request.runs / self.run_id,
            about=about_of(
                {n.host.name: (n.first_rank, n.local_world_size) for n in self.nodes},
                engine=job.engine,
                script=job.script,
                owner=whoami(),
                started=started,
                master=self.world.master,
                attempt=self.attempt,
                max_restarts=0 if request.least else job.max_restarts,
                spares=len(self.spares),
                stall_timeout=request.stall_timeout,
                least=request.least,
                stop_grace=STOP_GRACE if request.grace is None else request.grace,
                max_log=request.max_log,
            ),
            lease=None if request.detach else request.lease,
            grace=GRACE if request.grace is None else request.grace,
            node_timeout=request.node_timeout,
        )

    def refine(self, facts: Mapping[str, Known], master: tuple[str, int] | None = None) -> Plan:
        """Returns the plan with the facts of preflight. master: the address and port at which ranks meet. Raises
        UsageError if the job does not fit the hosts."""
        return replace(
            plan(self.inventory, self.job, self.request, self.run_id, facts, master),
            attempt=self.attempt,
            absent=self.absent,
            requested=self.requested,
            typed=self.typed,
            contained=self.contained,
        )

    def whole(self) -> Plan:
        """Returns the plan in which the spares are nodes, too."""
        if not self.spares:
            return self
        return self._on((*self.hosts, *self.spares), len(self.nodes) + len(self.spares))

    def without(self, names: Collection[str]) -> Plan:
        """Returns the plan in which spares replace the hosts `names`. Node ranks still follow the inventory's order."""
        return self._on([host for host in (*self.hosts, *self.spares) if host.name not in names], len(self.nodes))

    def beginning_without(self, failed: Mapping[str, FleetError]) -> Plan:
        """Returns the plan that begins without the hosts that failed. These are put last, because they may join later,
        and because ranks meet on the first node. failed: host -> its error."""
        absent = {**self.absent, **failed}
        hosts = sorted(self.inventory.hosts, key=lambda host: host.name in absent)
        inventory = replace(self.inventory, hosts=tuple(hosts))
        return replace(self, inventory=inventory, absent=absent).refine(self.facts)

    def _on(self, hosts: Iterable[Host], nnodes: int) -> Plan:
        """Returns the plan on these hosts. nnodes: the number of nodes; the other hosts are spares."""
        kept = {host.name for host in hosts}
        hosts = tuple(host for host in self.inventory.hosts if host.name in kept)
        least = self.request.least
        request = replace(self.request, nnodes=f"{least}:{nnodes}" if least else nnodes, spares=len(hosts) - nnodes)
        return replace(self, inventory=replace(self.inventory, hosts=hosts), request=request).refine(self.facts)


def plan(
    inventory: Inventory,
    job: Job,
    request: Launch,
    run_id: str,
    facts: Mapping[str, Known] = MappingProxyType({}),
    master: tuple[str, int] | None = None,
) -> Plan:
    """Returns the plan. Pure. Node ranks follow the inventory's order. Raises UsageError for a job that cannot be
    planned. facts, master: see Plan.refine."""
    chosen = check(job)
    if request.workdir == "":  # from an unset variable
        raise UsageError("--workdir is empty", hint="without it, it is the host's workdir, else this folder's path")
    if request.least and not chosen.elastic:
        raise UsageError(
            f"--nnodes {request.least}:{request.most}: engine {job.engine} is not elastic",
            hint=f"--engine torchrun is; or --nnodes {request.most}",
        )
    if request.least and request.spares:
        raise UsageError(
            f"--spares does not go together with --nnodes {request.least}:{request.most}",
            hint=f"--nnodes {request.least} --spares N replaces a lost node; MIN:MAX goes on without it",
        )
    nodes = tuple(nodes_of(inventory, job, request, facts))
    check_containers(request, (node.host for node in nodes))
    requested, request = request, met_by_name(request, nodes)
    address, port = master or (master_address(nodes[0].host, request, len(nodes)), request.master_port)
    addresses = {name: f.address for name, f in facts.items() if f.address}
    slots = {node.host.name: ranks_on(node.host, request, facts.get(node.host.name)) for node in nodes}
    world = World(
        run_id=run_id,
        nodes=nodes,
        master_addr=address,
        master_port=port or candidate_ports(run_id)[0],
        addresses=addresses,
        slots=slots,
        least=request.least,
    )
    plans = []
    for node in nodes:
        host, known = node.host, facts.get(node.host.name, Known())
        env = {**inventory.env_for(host), **job.env}
        if known.interface and len(nodes) > 1:
            # otherwise gloo and NCCL use the interface that the host's name resolves to. The user's own choice stays
            names = zip(INTERFACE_VARIABLES, (known.interface, known.nccl or known.interface), strict=True)
            env = {**{name: value for name, value in names if name not in job.env_expand}, **env}
        start = chosen.start(job, world, node, known.python or request.training_of(host)[0] or "python3")
        owned = {*start.env} | (set() if chosen.ranks(job) else RANK_VARIABLES)
        for name in sorted(owned & {*job.env, *job.env_expand}):
            raise UsageError(
                f"--env {name}: engine '{job.engine}' sets it itself", hint=f"use {INSTEAD.get(name, 'another name')}"
            )
        expand = {**(recorder(known, {*env, *job.env_expand}) if request.flight_recorder else {}), **job.env_expand}
        env = {**{k: v for k, v in env.items() if k not in job.env_expand}, **start.env}
        part = (host, node.node_rank, node.local_world_size, node.first_rank)
        workdir, (_, activate) = request.workdir or host.workdir or request.cwd, request.training_of(host)
        plans.append(NodePlan(*part, start, env, expand, workdir, activate, request.image_of(host)))
    return Plan(
        inventory=inventory,
        run_id=run_id,
        job=job,
        request=request,
        world=world,
        nodes=tuple(plans),
        facts=facts,
        spares=inventory.hosts[count_of(inventory, request) :][: request.spares],
        requested=requested,
    )


def plan_of(inventory: Inventory, request: Launch, typed: tuple[str, ...] = ()) -> Plan:
    """Returns the plan of a new run. typed: the command line that requests it."""
    known_rules(inventory.hosts)
    here = Path.cwd() if request.folder is None else Path(request.folder).absolute()
    request = replace(request, folder=str(here), wheels=request.wheels and str(here / request.wheels))
    if request.wheels and not request.claims and not Path(request.wheels).exists():
        raise UsageError(f"{request.wheels} does not exist", hint="give a folder of wheels, or a requirements file")
    job = job_of(request)
    job = engine(job.engine).prepare(job, here)
    made = plan(inventory, job, request, request.claims or id_of(request))
    return replace(made, typed=typed, attempt=request.attempt)
