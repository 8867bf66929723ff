"""Queries the training interpreter, installs wheels into it, and builds wheels with it."""
