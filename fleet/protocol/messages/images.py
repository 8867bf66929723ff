"""Container images: what a node's runtime has, and what the head requests of it."""

from typing import Literal, TypedDict

from fleet.protocol.messages.values import Sha256, Training

Of = Literal["config", "manifest"]  # what an id is the sha256 of
# id, of: the image's of that name. stored: whether a wanted one is there, under any name. archive: of what was saved
Has = TypedDict(
    "Has",
    {
        "event": Literal["done"],
        "runtime": Literal["podman", "docker"],
        "id": Sha256 | None,
        "of": Of,
        "stored": bool,
        "archive": dict[Sha256, Of],
    },
)


class ImageSpec(Training):
    """ids: of which the image is to have one. file: of the archive, to save it to or to load it from."""

    do: Literal["look", "save", "load"]
    image: str
    ids: dict[Sha256, Of]
    file: str | None
    mark: str
