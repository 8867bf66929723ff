"""Takes the hosts of a Slurm allocation (allocation.py), and requests one from a login node (script.py, queue.py)."""
