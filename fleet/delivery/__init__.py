"""Bytes to many hosts: what is to be there, and the ways it takes."""
