"""`fleet get`: what a node says of files that it gives."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import Count, Failed, Path, Sha256, Within

# relative to what was asked for, "" where that is one file. link: where it leads to
Entry = TypedDict(
    "Entry",
    {
        "path": Within | Literal[""],
        "kind": Literal["file", "folder", "link"],
        "size": Count,
        "mode": Annotated[int, lambda mode: 0 <= mode <= 0o777],
        "mtime": Annotated[float, lambda seconds: abs(seconds) < 1e11],
        "link": Path | None,
    },
)
# more: another message goes on with the list. missing: it is not there
Listed = TypedDict(
    "Listed", {"event": Literal["listed"], "entries": list[Entry], "more": bool, "missing": bool, "path": Path}
)
# output from here on is this file's, from `offset` on; `hole` zero bytes come first, unsent
Piece = TypedDict("Piece", {"event": Literal["piece"], "index": Count, "offset": Count})
# all of a file has been sent: its size and digest as it was read
Given = TypedDict("Given", {"event": Literal["given"], "index": Count, "size": Count, "sha256": Sha256})
Giving = Listed | Piece | Given | Failed
GiveSpec = TypedDict("GiveSpec", {"path": str, "since": float | None})
