"""Facts of a node: hardware, system, tools, networks."""
