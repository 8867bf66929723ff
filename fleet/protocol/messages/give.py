"""`fleet get`: a node's messages about files that it gives."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.chain import Nanoseconds, Tree
from fleet.protocol.messages.values import Count, Failed, Matching, Path, Sha256

# a file's size, mtime, ctime and inode there: others are another version of it
Version = Annotated[str, Matching("[0-9]{1,18}( -?[0-9]{1,20}){3}")]
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
# of files that are wanted from `index` on: version and digest of each, "" where it is of the version that the head has;
# the bytes of those of which it has nothing are one output frame after this
Row = Annotated[
    str,
    Matching("|[0-9]{1,18}( -?[0-9]{1,20}){3} [0-9a-f]{64}"),
    lambda row: not row or abs(int(row.split(" ")[1])) < 1 << 63,
]
Few = TypedDict("Few", {"event": Literal["few"], "index": Count, "files": list[Row]})
# it changes all the time. quiet: versions of it that do not, and how many seconds old they are
Moving = TypedDict("Moving", {"event": Literal["moving"], "index": Count, "quiet": list[tuple[Path, Count]]})
# it is there no more
Gone = TypedDict("Gone", {"event": Literal["gone"], "index": Count})
Giving = Tree | Few | Begin | Piece | Given | Moving | Gone | Failed
# run: only what was written since that run began there. copy_unsafe_links: what links that lead out of it lead to comes
# in their place
GiveSpec = TypedDict("GiveSpec", {"path": str, "run": str | None, "copy_unsafe_links": bool})
