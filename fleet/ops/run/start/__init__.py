"""Preflight, and the start of each node's part."""
