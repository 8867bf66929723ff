"""fleet's version, on its own: everything may import it."""

__version__ = "0.1.0"
