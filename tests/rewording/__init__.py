"""fleet with every message replaced: what is decided by an English sentence is decided otherwise there, and shows."""
