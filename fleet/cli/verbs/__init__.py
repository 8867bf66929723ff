"""Holds verbs about hosts, a click command in each file."""
