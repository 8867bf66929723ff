"""Why a program of the node half gives up, in words for people."""


class Refused(Exception):
    """message, hint; and "busy" where another one is at it just now"""


class Trouble(Exception):
    """message, hint"""
