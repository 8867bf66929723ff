"""Holds the answers of verbs: one dataclass for each, whose fields are its JSON (docs/json.md). `Result.read(KIND)`
returns one."""
