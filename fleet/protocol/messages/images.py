"""Container images: what a node's runtime has, and what the head requests of it."""

from typing import Literal, TypedDict

from fleet.protocol.messages.values import Sha256, Training

Has = TypedDict(
    "Has", {"event": Literal["done"], "runtime": Literal["podman", "docker"], "id": Sha256 | None, "stored": bool}
)


class ImageSpec(Training):
    """id: what the image is to have. file: of the archive, to save it to or to load it from."""

    do: Literal["look", "save", "load"]
    image: str
    id: str | None
    file: str | None
    mark: str
