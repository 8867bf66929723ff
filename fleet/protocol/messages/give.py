"""`fleet get`: what a node says of files that it gives."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.chain import Nanoseconds, Tree
from fleet.protocol.messages.values import Count, Failed, Matching, Path, Sha256

# a file's size, mtime, ctime and inode there: others are another version of it
Version = Annotated[str, Matching("[0-9 -]{1,120}")]
# that file comes now, from `offset` on; what came of it before, of this version or another, counts no more
Begin = TypedDict(
    "Begin",
    {
        "event": Literal["begin"],
        "index": Count,
        "offset": Count,
        "size": Count,
        "mtime": Nanoseconds,
        "version": Version,
    },
)
# output goes on further down: zero bytes come first, unsent
Piece = TypedDict("Piece", {"event": Literal["piece"], "offset": Count})
# all of it was sent, and it did not change meanwhile. growing: more has been, or is being, appended to it
Given = TypedDict("Given", {"event": Literal["given"], "sha256": Sha256, "growing": bool})
# it changes all the time. quiet: files beside it that do not, and how many seconds old they are
Moving = TypedDict("Moving", {"event": Literal["moving"], "index": Count, "quiet": list[tuple[Path, Count]]})
# it is there no more
Gone = TypedDict("Gone", {"event": Literal["gone"], "index": Count})
Giving = Tree | Begin | Piece | Given | Moving | Gone | Failed
# run: only what was written since that run began there
GiveSpec = TypedDict("GiveSpec", {"path": str, "run": str | None})
