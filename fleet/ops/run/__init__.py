"""Plans, starts, follows, stops and lists runs."""
