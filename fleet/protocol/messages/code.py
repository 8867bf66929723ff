"""Defines the messages of a code sync: a node's, while it receives what it lacks."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from fleet.protocol.messages.values import Count, Delivery, Failed, Path, Sha256, Within

# known: the digest of the node's manifest
Hello = TypedDict("Hello", {"event": Literal["hello"], "dest": Path, "known": str | None})
# the destination is a folder of the source
Inside = TypedDict("Inside", {"event": Literal["inside"], "path": Within})
# the destination is the source
Same = TypedDict("Same", {"event": Literal["same"]})
# another host of this sync has the lock of the same folder
Shared = TypedDict("Shared", {"event": Literal["shared"], "with": str})
Wanted = list[tuple[str, int]]  # path, size
Blocks = list[tuple[str, Count, Sha256]]  # path, number, sha256 of the node's block
Lacking = TypedDict("Lacking", {"files": Wanted, "blocks": Blocks}, total=False)


class Lacks(Lacking):
    """The first parts of long lists; Need has the last parts."""

    event: Literal["lacks"]


Need = TypedDict("Need", {"event": Literal["need"], "files": Wanted, "blocks": Blocks})
# id: the source's id, "" if it has none
Source = TypedDict("Source", {"host": str, "path": str, "id": str})
Kind = Literal["f", "d", "l"]
# more: another part of the list follows
Doubts = TypedDict("Doubts", {"event": Literal["doubts"], "items": list[Path], "more": bool})
Gone = TypedDict("Gone", {"event": Literal["gone"], "items": list[tuple[Within, Kind]], "more": bool})
# path, kind ("o": no file, folder or link), bytes, seconds since it was written, a path in it that is the node's own
OwnFile = tuple[Within, Kind | Literal["o"], Count, float, str]
Own = TypedDict("Own", {"event": Literal["own"], "items": list[OwnFile], "more": bool})
# path, size, sha256
LostFile = tuple[Within, Count, str]
Lost = TypedDict("Lost", {"event": Literal["lost"], "items": list[LostFile], "more": bool})
# The sync needs consent. to: "sources": files that other `sources` delivered would be lost. "deletion": most of
# `folder` ("" is all of it) would be deleted. of: number of files that are as they were delivered
Consent = TypedDict(
    "Consent",
    {
        "event": Literal["consent"],
        "to": Literal["sources", "deletion"],
        "dest": Path,
        "sources": list[Source],
        "folder": str,
        "deleted": Count,
        "replaced": Count,
        "of": Count,
        "named": list[Path],
    },
)
Waiting = TypedDict("Waiting", {"event": Literal["waiting"], "run": str})
# overwritten: existing files whose bytes have changed
Done = TypedDict(
    "Done",
    {
        "event": Literal["done"],
        "sent": Count,
        "bytes": Count,
        "deleted": Count,
        "kept": list[Path],
        "left": list[Path],
        "entries": Count,
        "changed": Count,
        "replaced": Count,
        "overwritten": Count,
        "aside": list[Path],
    },
)


class Refused(Failed, total=False):
    """The node refuses the sync. busy: another sync to the same folder is running."""

    busy: bool


class Spec(Delivery):
    """The request to sync. mark: name of a folder that is in the source during the sync. replaces: other sources whose
    files may be replaced and deleted; True: any. force: patterns of the node's own files that the source's replace,
    changed or not; True: all. max_delete: files that may be deleted; None: not most of them."""

    dest: str
    source: Source
    mark: str | None
    replaces: list[Source] | Literal[True]
    force: bool | Sequence[str]
    max_delete: int | Literal["all"] | None
