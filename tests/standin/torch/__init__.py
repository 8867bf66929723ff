"""Stands in for torch where a test starts its launcher and nothing else of it."""
