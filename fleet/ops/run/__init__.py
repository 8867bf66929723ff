"""A run, from its plan to its end and after it."""
