"""Defines fleet's version. Every other module may import this one."""

__version__ = "0.1.0"
