"""Every message of every program, a module for each; their programs' docstrings describe the fields."""
