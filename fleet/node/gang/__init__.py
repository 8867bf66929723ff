"""Has the rule that decides how a run's ranks, nodes and attempts end. A head or the first container drives it; it has
no side effects."""
