"""Finds runs that were started earlier, and reads, follows or stops them."""
