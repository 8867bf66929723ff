"""exec: what a node says when it ended the command."""

from typing import Literal, TypedDict

# left: pid, command of what could not be ended
Cut = TypedDict("Cut", {"event": Literal["ended"], "why": str | None, "left": list[tuple[int, str]]})
