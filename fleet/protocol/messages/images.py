"""Defines the messages about container images: what a node's runtime has, and what the head requests of it."""

from typing import Literal, TypedDict

from fleet.protocol.messages.values import Sha256, Training

Of = Literal["config", "manifest"]  # what an id is the sha256 of
# id, of: of the image with that name. stored: an image with a requested id is there, under any name. archive: of the
# saved file
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
    """Requests work on an image. ids: the image must have one of them. file: the archive to save to, or to load
    from."""

    do: Literal["look", "save", "load"]
    image: str
    ids: dict[Sha256, Of]
    file: str | None
    mark: str
