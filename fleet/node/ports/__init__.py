"""Who listens on a port, their end, and a way through."""
