"""What messages are made of."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict


def matching(pattern: str, flags: int = 0) -> Callable[[Any], bool]:
    """A predicate: whether a text is one of these, all of it."""
    fullmatch = re.compile(pattern, flags).fullmatch
    return lambda text: fullmatch(text) is not None


# bytes that are no UTF-8 come as \udc80 to \udcff
Path = Annotated[str, matching("[^\0\ud800-\udc7f\udd00-\udfff]+")]
AbsolutePath = Annotated[str, matching("/[^\0\ud800-\udc7f\udd00-\udfff]*")]
Count = Annotated[int, lambda number: 0 <= number < 1 << 62]
Sha256 = Annotated[str, matching("[0-9a-f]{64}")]
# what a program says in the end that could not do its work
Failed = TypedDict("Failed", {"event": Literal["failed"], "message": str, "hint": str | None})
