"""Parses the command line."""
