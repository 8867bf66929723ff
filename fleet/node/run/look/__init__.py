"""What is asked of runs on a node."""
