"""Runs a launch from its plan to its end, with all attempts."""
