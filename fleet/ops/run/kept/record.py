"""Holds what is known of a run by the process that follows it: the launch that planned it, or a head that found it on
its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fleet.model import Host, Node
from fleet.protocol.messages.run import About, Verdict
from fleet.requests.launch import Launch

GRACE, STOP_GRACE = 10.0, 30.0  # the latter is torchrun's own, in which ranks may save their work


@dataclass(frozen=True)
class RunRecord:
    """nodes: in node-rank order. logs: the run's folder on this machine. about: what each node keeps of it. lease:
    seconds that it goes on without a head, None for ever. grace, node_timeout: seconds; grace: between SIGTERM and
    SIGKILL after a failure, of which peers may hang. unknown: hosts of which who looks on knows nothing; without: of
    those, who answered, and have no such run. end: of one that is over, why a head had it stopped. verdict: how it
    ended, where that is decided. term: counts those who led it, in turn."""

    run_id: str
    nodes: tuple[Node, ...]
    logs: Path
    about: About
    lease: float | None = Launch.lease
    grace: float = GRACE
    node_timeout: float = Launch.node_timeout
    unknown: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    end: Verdict | None = None
    verdict: Verdict | None = None
    term: int = 1

    def but(self, **told: Any) -> RunRecord:
        """Returns the same, where something else is reported about it."""
        return replace(self, about=cast("About", {**self.about, **told}))

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
        """By host name."""
        return {node.host.name: node.first_rank for node in self.nodes}

    def node(self, host: str) -> Node:
        return next(node for node in self.nodes if node.host.name == host)

    def elsewhere(self) -> RunRecord:
        """Returns it as another process of this machine has it, in a folder of its own."""
        nodes = tuple(replace(node, host=host_elsewhere(node.host)) for node in self.nodes)
        return replace(self, logs=self.logs.absolute(), nodes=nodes)


def about_of(hosts: Mapping[str, tuple[int, int]], **told: Any) -> About:
    """Returns what nodes keep of a run. hosts: as About has them. told: the fields that differ from their defaults."""
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
    return cast("About", {**about, **told})


def host_elsewhere(host: Host) -> Host:
    """Returns a host for a process in another folder. It has no variables: their values belong to ranks only."""
    key = host.identity_file
    if key is not None and not key.startswith("~"):
        key = str(Path(key).absolute())
    return replace(host, identity_file=key, devices=None, env={})
