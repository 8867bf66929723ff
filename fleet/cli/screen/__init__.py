"""The terminal: what is printed."""
