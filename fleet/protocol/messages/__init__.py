"""Every message of every program, a module for each; their programs' docstrings tell what the fields mean."""
