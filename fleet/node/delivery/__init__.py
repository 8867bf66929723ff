"""Delivers code and data into folders of the node."""
