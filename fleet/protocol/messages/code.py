"""Code sync: a node's messages while it receives what it lacks."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from fleet.protocol.messages.values import Count, Delivery, Failed, Path, Sha256, Within

# known: the digest of the manifest that it has
Hello = TypedDict("Hello", {"event": Literal["hello"], "dest": Path, "known": str | None})
# the destination is a folder of the source
Inside = TypedDict("Inside", {"event": Literal["inside"], "path": Within})
# the destination is the source
Same = TypedDict("Same", {"event": Literal["same"]})
# another host of this sync has the lock of the same folder
Shared = TypedDict("Shared", {"event": Literal["shared"], "with": str})
Wanted = list[tuple[str, int]]  # path, size
Blocks = list[tuple[str, Count, Sha256]]  # path, number, sha256 of what is there
Lacking = TypedDict("Lacking", {"files": Wanted, "blocks": Blocks}, total=False)


class Lacks(Lacking):
    """The first parts of long lists; the last ones are in Need."""

    event: Literal["lacks"]


Need = TypedDict("Need", {"event": Literal["need"], "files": Wanted, "blocks": Blocks})
# id: what a source is known by, "" where it has none
Source = TypedDict("Source", {"host": str, "path": str, "id": str})
Kind = Literal["f", "d", "l"]
# more: another part of the list follows
Doubts = TypedDict("Doubts", {"event": Literal["doubts"], "items": list[Path], "more": bool})
Gone = TypedDict("Gone", {"event": Literal["gone"], "items": list[tuple[Within, Kind]], "more": bool})
# path, kind ("o": neither file, folder nor link), bytes, seconds since it was written, something in it that is its own
OwnFile = tuple[Within, Kind | Literal["o"], Count, float, str]
Own = TypedDict("Own", {"event": Literal["own"], "items": list[OwnFile], "more": bool})
# path, size, sha256
LostFile = tuple[Within, Count, str]
Lost = TypedDict("Lost", {"event": Literal["lost"], "items": list[LostFile], "more": bool})
# what would be lost without it. to: what consent is missing: that files of `sources` are lost, which also delivered
# there, or that most of `folder`, "" being all, is deleted. of: files that are there as they were delivered
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
# overwritten: files that were there and have other bytes now
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
    """busy: another sync to the same folder is under way."""

    busy: bool


class Spec(Delivery):
    """mark: the name of a folder that lies in the source meanwhile. replaces: the other sources of which what they
    delivered may be replaced and deleted; True: any. force: patterns of the node's own that gives way to the source's,
    changed or not; True: all. max_delete: files that may be deleted; None: not most of them."""

    dest: str
    source: Source
    mark: str | None
    replaces: list[Source] | Literal[True]
    force: bool | Sequence[str]
    max_delete: int | Literal["all"] | None
