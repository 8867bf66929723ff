"""The command line: what is typed."""
