"""Starts the training command for the engine."""
