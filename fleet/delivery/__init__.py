"""Sends files to many hosts: decides which files they must have, and by which way these are sent."""
