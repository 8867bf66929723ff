"""Runs fabric's @task functions over fleet's own connections. fabric and invoke are imported in this folder only."""
