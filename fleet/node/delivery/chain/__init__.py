"""Passes a broadcast along a chain: each member receives one stream of files and sends it to the next."""
