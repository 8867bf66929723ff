"""The world of a run on two hosts of two and three ranks, as engines are given it."""

from __future__ import annotations

from fleet.engines.base import World
from fleet.model import Host, Node

NODES = (Node(Host("a", "10.0.0.1", slots=2), 0, 2, 0), Node(Host("b", "10.0.0.2", devices=(1, 3, 5)), 1, 3, 2))
WORLD = World("run-1", NODES, "10.0.0.1", 20000, {"b": "10.0.0.2"})
ALONE = World("run-1", NODES[:1], "10.0.0.1", 20000)
