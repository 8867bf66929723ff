"""Defines the record by which a process follows a run. A launch makes it from its plan; any other head makes it from
the reports of the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fleet.model import Host, Node
from fleet.protocol.messages.run import About, Verdict
from fleet.requests.launch import Launch

# seconds between SIGTERM and SIGKILL, after a failure and after a user's stop. The latter is torchrun's own value:
# ranks may save their work in that time
GRACE, STOP_GRACE = 10.0, 30.0


@dataclass(frozen=True)
class RunRecord:
    """Describes a run to the process that follows it.

    nodes: in node-rank order. logs: the run's folder on this machine. about: how the nodes describe the run. lease:
    seconds that the run goes on without a head, None: for ever. grace: seconds between SIGTERM and SIGKILL after a
    failure, when peers may hang. node_timeout: seconds of silence until a node is lost. unknown: hosts whose part of
    the run is not known here. hosts_without_run: those of `unknown` that answered. stop_reason: why a head stopped the
    run, if it is over. verdict: how the run ended, once that is decided. term: the number of the run's coordinator,
    counted from 1."""

    run_id: str
    nodes: tuple[Node, ...]
    logs: Path
    about: About
    lease: float | None = Launch.lease
    grace: float = GRACE
    node_timeout: float = Launch.node_timeout
    unknown: frozenset[str] = frozenset()
    hosts_without_run: frozenset[str] = frozenset()
    stop_reason: Verdict | None = None
    verdict: Verdict | None = None
    term: int = 1

    def but(self, **fields: Any) -> RunRecord:
        """Returns the same record with other fields of `about`."""
        return replace(self, about=cast("About", {**self.about, **fields}))

    @property
    def attempt(self) -> int:
        return self.about["attempt"]

    @property
    def restartable(self) -> bool:
        """Returns whether another attempt may follow."""
        return self.about["max_restarts"] + self.about["spares"] > 0

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def world_size(self) -> int:
        return sum(node.local_world_size for node in self.nodes)

    @property
    def first_ranks(self) -> dict[str, int]:
        """Returns each host's first rank, by host name."""
        return {node.host.name: node.first_rank for node in self.nodes}

    def node(self, host: str) -> Node:
        return next(node for node in self.nodes if node.host.name == host)

    def elsewhere(self) -> RunRecord:
        """Returns the record for a process of this machine with another current folder: its paths are absolute."""
        nodes = tuple(replace(node, host=host_elsewhere(node.host)) for node in self.nodes)
        return replace(self, logs=self.logs.absolute(), nodes=nodes)


def about_of(hosts: Mapping[str, tuple[int, int]], **fields: Any) -> About:
    """Returns the nodes' description of a run. hosts: name -> (first rank, number of ranks). fields: other fields of
    About."""
    about: About = {
        "engine": "engine",
        "script": "",
        "owner": "",
        "started": 0.0,
        "nnodes": len(hosts),
        "hosts": dict(hosts),
        "world_size": sum(ranks for _, ranks in hosts.values()),
        "master": "",
        "attempt": 0,
        "max_restarts": 0,
        "spares": 0,
        "stall_timeout": None,
        "least": 0,
        "stop_grace": STOP_GRACE,
        "max_log": 0,
    }
    return cast("About", {**about, **fields})


def host_elsewhere(host: Host) -> Host:
    """Returns the host for a process with another current folder. The host has no variables, because only ranks may get
    the values of variables."""
    key = host.identity_file
    if key is not None and not key.startswith("~"):
        key = str(Path(key).absolute())
    return replace(host, identity_file=key, devices=None, env={})
