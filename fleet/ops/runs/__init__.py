"""Runs that are, were, or outlived their head: `fleet ps`, `stop`, `attach`, `logs`."""
