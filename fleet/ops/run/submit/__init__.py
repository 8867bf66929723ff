"""Handles runs that a batch system starts later. They are requested here, coordinated by their job, and watched in
their folder."""
