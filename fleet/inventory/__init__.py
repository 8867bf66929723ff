"""Finds, reads, selects from and converts inventories: YAML files and hostfiles."""
