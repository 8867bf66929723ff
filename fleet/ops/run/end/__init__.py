"""Reports how a run ended: the first failure, its cause, the summary."""
