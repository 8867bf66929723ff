"""`fleet get`: what a node says of files that it gives."""

from typing import Literal, TypedDict

from fleet.protocol.messages.chain import Tree
from fleet.protocol.messages.values import Count, Failed, Sha256

# output from here on is this file's, from `offset` on; `hole` zero bytes come first, unsent
Piece = TypedDict("Piece", {"event": Literal["piece"], "index": Count, "offset": Count})
# all of a file has been sent: its size and digest as it was read
Given = TypedDict("Given", {"event": Literal["given"], "index": Count, "size": Count, "sha256": Sha256})
Giving = Tree | Piece | Given | Failed
GiveSpec = TypedDict("GiveSpec", {"path": str, "since": float | None})
