"""What verbs are asked for: one frozen dataclass a verb, with its defaults and its limits, checked where it is made."""
