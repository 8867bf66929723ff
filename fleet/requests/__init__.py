"""Defines the requests of verbs: one frozen dataclass a verb, with its defaults and its limits, checked where it is
made."""
