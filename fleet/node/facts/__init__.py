"""Collects facts of a node: hardware, system, tools, networks."""
