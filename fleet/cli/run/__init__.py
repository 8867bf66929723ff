"""Verbs of runs."""
