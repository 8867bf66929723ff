"""Slurm: hosts of an allocation (allocation.py), and asking for one from a login node (script.py, queue.py)."""
