"""Runs that are there already: found, read, attached to, stopped."""
