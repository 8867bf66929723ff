"""What verbs answer: a dataclass an answer, whose fields are its JSON (docs/json.md). They are `Result.read(KIND)`."""
