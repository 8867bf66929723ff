"""Holds what programs of every kind need: the wire, files, locks, processes."""
