"""Defines values that several messages have."""

import re
from typing import Annotated, Literal, TypedDict


class Matching:
    """A predicate: returns whether the whole text matches the pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)

    def __call__(self, text: str) -> bool:
        return self.pattern.fullmatch(text) is not None


# bytes that are no UTF-8 are \udc80 to \udcff
Path = Annotated[str, Matching("[^\0\ud800-\udc7f\udd00-\udfff]+")]
# a path inside a folder
Within = Annotated[Path, lambda path: not {"", ".", ".."} & set(path.split("/"))]
Count = Annotated[int, lambda number: 0 <= number < 1 << 62]
Sha256 = Annotated[str, Matching("[0-9a-f]{64}")]
# the last message of a program that could not do its work
Failed = TypedDict("Failed", {"event": Literal["failed"], "message": str, "hint": str | None})


class Claim(TypedDict):
    """Describes who delivers, equal on all hosts. sync: its id. head: its name for users. wait: seconds for the
    lock."""

    sync: str
    head: str
    wait: float


class Delivery(Claim):
    """Describes a delivery to one host. patience: seconds after which a silent head counts as gone."""

    host: str
    patience: float


class _Inside(TypedDict, total=False):
    container: str | None
    container_args: list[str]
    env_expand: dict[str, str]


class Training(_Inside):
    """Describes where training happens on a node: its interpreter and the environment around it, as the inventory names
    them. container: the image that the interpreter is in. container_args: of the runtime's own."""

    python: str | None
    activate: str | None
    env: dict[str, str]
    workdir: str | None
