"""Keeps runs on the head: records, logs, documents."""
