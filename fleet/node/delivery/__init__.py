"""Code and data on their way into folders of the node."""
