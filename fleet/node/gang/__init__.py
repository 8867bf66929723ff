"""The rule by which a run's ranks, nodes and attempts end: pure, driven by a head or by the first container."""
