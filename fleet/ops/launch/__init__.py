"""A run: planned, checked, started, followed to its end, and started again."""
