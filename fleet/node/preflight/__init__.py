"""What a host is asked before a run, and by `fleet check`."""
