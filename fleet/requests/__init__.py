"""Defines the requests of verbs: a frozen dataclass for each, with its defaults and its limits. It checks itself when
it is made."""
