"""What is known of a run by whoever follows it: the launch that planned it, or a head that found it on its nodes."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.model import Host, Node
from fleet.protocol.messages.run import About, Verdict
from fleet.requests.launch import Launch

GRACE, STOP_GRACE = 10.0, 30.0  # the latter is torchrun's own, in which ranks may save their work


@dataclass(frozen=True)
class RunRecord:
    """nodes: in node-rank order. engine, script: as they were asked for. lease: seconds that it goes on without a head,
    None for ever. grace, stop_grace, node_timeout: seconds; stop_grace: between SIGTERM and SIGKILL where a user had it
    stopped, grace: after a failure, of which peers may hang. logs: the run's folder on this machine. owner: USER@HEAD
    of who started it, and when, in seconds since the epoch. attempt: how many starts of it came before; max_restarts:
    failures after which fleet starts it again; spares: that stand by. stall_timeout: seconds of silence after which an
    attempt is over, None: never. least: of an elastic run, nodes that must be left, else 0: its engine starts ranks
    again, hosts may come late, go, and come back. unknown: hosts of which who looks on knows
    nothing; without: of those, who answered, and have no such run. end: of one that is over, why a head had it
    stopped. verdict: how it ended, where that is decided. term: counts those who led it, in turn. max_log: bytes that
    a node keeps of a log which the leader has; 0: all."""

    run_id: str
    nodes: tuple[Node, ...]
    engine: str
    script: str
    master: str
    logs: Path
    lease: float | None = Launch.lease
    grace: float = GRACE
    node_timeout: float = Launch.node_timeout
    owner: str = ""
    started: float = 0.0
    attempt: int = 0
    max_restarts: int = 0
    stall_timeout: float | None = None
    least: int = 0
    spares: int = 0
    unknown: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    end: Verdict | None = None
    verdict: Verdict | None = None
    term: int = 1
    stop_grace: float = STOP_GRACE
    max_log: int = 0

    @property
    def restartable(self) -> bool:
        """Whether another attempt may follow."""
        return self.max_restarts + self.spares > 0

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def world_size(self) -> int:
        return sum(node.local_world_size for node in self.nodes)

    @property
    def first_ranks(self) -> dict[str, int]:
        """By host name."""
        return {node.host.name: node.first_rank for node in self.nodes}

    def node(self, host: str) -> Node:
        return next(node for node in self.nodes if node.host.name == host)

    def about(self) -> About:
        """What each node keeps of it."""
        return {
            "engine": self.engine,
            "script": self.script,
            "owner": self.owner,
            "started": self.started,
            "nnodes": len(self.nodes),
            "hosts": {node.host.name: (node.first_rank, node.local_world_size) for node in self.nodes},
            "world_size": self.world_size,
            "master": self.master,
            "attempt": self.attempt,
            "max_restarts": self.max_restarts,
            "spares": self.spares,
            "stall_timeout": self.stall_timeout,
            "least": self.least,
            "stop_grace": self.stop_grace,
            "max_log": self.max_log,
        }

    def elsewhere(self) -> RunRecord:
        """Returns it as another process of this machine has it, in a folder of its own."""
        nodes = tuple(replace(node, host=host_elsewhere(node.host)) for node in self.nodes)
        return replace(self, logs=self.logs.absolute(), nodes=nodes)


def whoami() -> str:
    """USER@HEAD, for others to see whose run it is."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "?"
    return f"{user}@{socket.gethostname()}"


def host_elsewhere(host: Host) -> Host:
    """Returns it as another process of this machine reaches it; values of variables belong to ranks only."""
    key = host.identity_file
    if key is not None and not key.startswith("~"):
        key = str(Path(key).absolute())
    return replace(host, identity_file=key, devices=None, env={})
