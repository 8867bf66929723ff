"""Follows the nodes of a run, and stops them."""
