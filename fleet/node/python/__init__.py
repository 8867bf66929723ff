"""The training interpreter: what it has, installing wheels into it, building them with it."""
