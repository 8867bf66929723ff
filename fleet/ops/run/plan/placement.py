"""Decides which hosts take part in a run, with how many ranks, and at which address they meet. Pure. plan.py makes the
plan from it."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.engines import engine
from fleet.engines.base import Start
from fleet.errors import UsageError
from fleet.model import Host, Inventory, Job, Node
from fleet.ops.plans import around
from fleet.protocol.state import CALLS
from fleet.requests.launch import Launch

# variables of torch's flight recorder: the number of its entries, and the path of a dump. Each row: the first version
# of torch with the new name, the new name, the old name. By their headers, 2.8 to 2.10 know the new name of the size,
# but only the old one makes them listen for requests of a dump
RECORDER = (
    ((2, 11), "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ((2, 8), "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
DUMPS, PIPE = "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
RECORDED = "2000"  # the calls of a rank that are recorded: torch's own default
PORTS = range(15000, 29500)  # below every system's ephemeral range, and not torch's own default 29500


@dataclass(frozen=True)
class Known:
    """Holds the facts of a node after preflight. gpus, cpus: counts. address, interface: those that its ranks use.
    nccl: the interface's name in NCCL's form. code: the state folder of a sync's delivery there, and its digest. seen:
    facts that are kept in run.json."""

    python: str | None = None
    gpus: int = 0
    cpus: int = 1
    address: str | None = None
    interface: str | None = None
    nccl: str | None = None
    code: tuple[str, str] | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodePlan(Node):
    """Plans one node's part. env: variable -> literal value; names may be shown, values never. env_expand: variable ->
    text that the node expands. activate: the shell line before the start. container: the image."""

    start: Start
    env: Mapping[str, str]
    env_expand: Mapping[str, str]
    workdir: str
    activate: str | None = None
    container: str | None = None

    @property
    def argv(self) -> list[str]:
        return [str(arg) for arg in self.start.argv]

    def shown(self, argv: Sequence[str]) -> list[str]:
        """Returns lines about the start on this node."""
        of_rank = shlex.join(self.start.command)
        return ["starts", f"engine: {shlex.join(argv)}", f"each rank: {of_rank}", *around(self.describe())]

    def describe(self) -> dict[str, Any]:
        return {
            "node_rank": self.node_rank,
            "ranks": list(self.ranks),
            "argv": self.argv,
            "command": list(self.start.command),
            "workdir": self.workdir,
            "activate": self.activate,
            **({"container": self.container} if self.container else {}),
            "env": sorted({*self.env, *self.env_expand}),
        }


def recorder(known: Known, given: Collection[str]) -> dict[str, str]:
    """Returns the variables by which torch's flight recorder writes into the run's folder. The node expands them.
    Returns {} if the user has set one of them. given: the user's variables. The old names work in every version of
    torch, but since 2.8 each rank warns about them."""
    if not {DUMPS, PIPE}.union(*(names for _, *names in RECORDER)).isdisjoint(given):
        return {}
    found = re.match(r"(\d+)\.(\d+)", str((known.seen.get("torch") or {}).get("version")))
    torch = (int(found[1]), int(found[2])) if found else (0, 0)
    size, file = (new if torch >= since else old for since, new, old in RECORDER)
    return {size: RECORDED, DUMPS: "1", **dict.fromkeys((file, PIPE), f"$FLEET_RUN_DIR/{CALLS}")}


def nodes_of(inventory: Inventory, job: Job, request: Launch, facts: Mapping[str, Known]) -> list[Node]:
    """Returns the nodes in the inventory's order, with their ranks. Raises UsageError if there are too few hosts."""
    hosts = inventory.hosts
    wanted = max(1, request.least or request.most or 1) + request.spares
    if (request.most or request.spares) and wanted > len(hosts):
        flags = [f"--nnodes {request.least or request.most}"] * (request.most is not None)
        flags += [f"--spares {request.spares}"] * (request.spares > 0)
        raise UsageError(f"{' '.join(flags)}: only {len(hosts)} hosts are selected", hint="see 'fleet hosts'")
    hosts = hosts[: count_of(inventory, request)]
    if not hosts:
        raise UsageError("no host is selected", hint="see 'fleet hosts'")
    nodes: list[Node] = []
    first = 0
    for node_rank, host in enumerate(hosts):
        count = engine(job.engine).ranks(job) or ranks_on(host, request, facts.get(host.name))
        nodes.append(Node(host, node_rank, count, first))
        first += count
    return nodes


def count_of(inventory: Inventory, request: Launch) -> int:
    """Returns the number of nodes. The inventory's hosts after the nodes are spares."""
    return len(inventory.hosts) - request.spares if request.most is None else request.most


def ranks_on(host: Host, request: Launch, facts: Known | None) -> int:
    """Returns the number of ranks of a host. It is --nproc-per-node, if that is given. Otherwise it is the host's
    slots. Without slots, there is a rank for each device, and at least one. An unknown number counts as 1."""
    if request.ranks is not None:
        return request.ranks
    gpus = len(host.devices) if host.devices is not None else (facts.gpus if facts else 0)
    if request.counted == "cpu":
        return max(1, facts.cpus if facts else 1)
    if request.counted == "gpu" and facts is not None and not gpus:
        raise UsageError(f"--nproc-per-node gpu: host {host.name} has no GPU", hint="give a number, or 'cpu'")
    if request.counted in ("gpu", "auto"):
        return max(1, gpus or (facts.cpus if facts and request.counted == "auto" else 1))
    if host.slots is not None:
        return min(host.slots, len(host.devices)) if host.devices is not None else host.slots
    return max(1, gpus)


def counted_there(host: Host, job: Job, request: Launch) -> bool:
    """Returns whether ranks_on() depends on the number of CPUs or GPUs of the host."""
    if request.ranks is not None or engine(job.engine).ranks(job):
        return False
    return request.counted == "cpu" or (host.devices is None and (request.counted != "slots" or host.slots is None))


def met_by_name(request: Launch, nodes: Sequence[Node]) -> Launch:
    """Returns the request. Removes a --master-addr that is node 0's name in the inventory, because other nodes may not
    be able to resolve that name. Keeps any other address. Raises UsageError for the name of another node."""
    first, address = nodes[0].host.name, request.master_addr
    if not address or ":" in address or address.replace(".", "").isdecimal():
        return request
    if address == first:
        return replace(request, master_addr=None)
    if address in [node.host.name for node in nodes]:
        raise UsageError(
            f"--master-addr {address}: ranks meet at node rank 0, and that is {first}",
            hint=f"leave it away, or write {address} first in the inventory",
        )
    return request


def master_address(first: Host, request: Launch, nnodes: int) -> str:
    """Returns the address at which ranks meet. It is --master-addr, if that is given. Otherwise it is 127.0.0.1 for a
    run on one node, and the data address of node 0 for a run on several."""
    if request.master_addr:
        return request.master_addr
    return "127.0.0.1" if nnodes == 1 else first.data_address or first.address


def candidate_ports(run_id: str, attempt: int = 0, count: int = 5) -> list[int]:
    """Returns ports for an automatic --master-port, derived from the run id. Two runs rarely get the same ports, and a
    plan always gets the same ones. Each attempt gets other ports, at which no process of the last attempt listens."""
    digest = hashlib.sha256((run_id + f"/{attempt}" * (attempt > 0)).encode()).digest()
    return [PORTS[int.from_bytes(digest[4 * i : 4 * i + 4], "big") % len(PORTS)] for i in range(count)]


def node_rank_marker(argvs: Sequence[Sequence[str]], ranks: Sequence[str]) -> Callable[[Sequence[str]], list[str]]:
    """Returns a function that puts NODE_RANK into a command, if the engines' commands differ only in the node rank.
    Otherwise the function changes nothing."""
    for place, args in enumerate(zip(*argvs, strict=False)):
        stems = {arg.removesuffix(rank) for arg, rank in zip(args, ranks, strict=True)}
        if len(set(args)) > 1 and len(stems) == 1:
            brief = f"{stems.pop()}NODE_RANK"
            return lambda argv: [*argv[:place], brief, *argv[place + 1 :]]
    return list
