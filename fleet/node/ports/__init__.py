"""Finds and ends the processes that listen on a port, and connects the head to a port of the node."""
