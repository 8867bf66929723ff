"""Defines the messages of `fleet get`: a node's, about files that it sends."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.chain import Nanoseconds, Tree
from fleet.protocol.messages.values import Count, Failed, Matching, Path, Sha256

# a file's size, mtime, ctime and inode on the node: if they differ, it is another version
Version = Annotated[str, Matching("[0-9]{1,18}( -?[0-9]{1,20}){3}")]
# this file follows, from `offset` on; bytes of it that were sent before are void
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
# output continues at this offset; zero bytes before it are not sent
Piece = TypedDict("Piece", {"event": Literal["piece"], "offset": Count})
# all of it was sent, and it did not change during that. growing: more was, or is being, appended
Given = TypedDict("Given", {"event": Literal["given"], "sha256": Sha256, "growing": bool})
# of the requested files from `index` on: version and digest of each, "" if the head has this version. One output frame
# follows, with the bytes of those of which the head has nothing
Row = Annotated[
    str,
    Matching("|[0-9]{1,18}( -?[0-9]{1,20}){3} [0-9a-f]{64}"),
    lambda row: not row or abs(int(row.split(" ")[1])) < 1 << 63,
]
Few = TypedDict("Few", {"event": Literal["few"], "index": Count, "files": list[Row]})
# the file changes all the time. quiet: other versions of it in its folder that are at rest, and their age in seconds
Moving = TypedDict("Moving", {"event": Literal["moving"], "index": Count, "quiet": list[tuple[Path, Count]]})
# the file does not exist any more
Gone = TypedDict("Gone", {"event": Literal["gone"], "index": Count})
Giving = Tree | Few | Begin | Piece | Given | Moving | Gone | Failed
# run: only files written since that run began there. copy_unsafe_links: send the targets of links that lead out, in
# place of the links
GiveSpec = TypedDict("GiveSpec", {"path": str, "run": str | None, "copy_unsafe_links": bool})
