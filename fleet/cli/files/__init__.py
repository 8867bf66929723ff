"""Verbs that move files."""
