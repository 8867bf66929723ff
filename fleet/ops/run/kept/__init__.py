"""What the head keeps of runs: records, logs, documents."""
