"""Runs a node's part of a run, from its start to its end."""
