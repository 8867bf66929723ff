"""Verbs of hosts: a click command a file."""
