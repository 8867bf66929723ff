"""Prints to the terminal."""
