"""Starts, supervises, follows and stops runs, and checks for other runs before a start."""
