"""Answers questions about runs on a node."""
