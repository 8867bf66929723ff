"""Runs preflight, and starts the part of each node."""
