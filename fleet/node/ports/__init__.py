"""Finds and ends the processes that listen on a port, and opens a way through."""
