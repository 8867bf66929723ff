"""Checks a host before a run, and for `fleet check`."""
