"""Commands and runs: start, supervise, follow, stop, and what is looked at before."""
