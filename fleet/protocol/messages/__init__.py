"""Defines the messages of all programs, in a module for each. The docstrings of the programs describe the fields."""
