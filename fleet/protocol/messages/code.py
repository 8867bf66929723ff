"""Code sync: what a node says while it is sent what it lacks."""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import AbsolutePath, Count, Delivery, Failed, Path

# known: the digest of the manifest that it has. rsync: where it lies there
Hello = TypedDict("Hello", {"event": Literal["hello"], "dest": Path, "known": str | None, "rsync": Path | None})
# another host of this sync has the lock of the same folder
Shared = TypedDict("Shared", {"event": Literal["shared"], "with": str})
Wanted = list[tuple[str, int]]  # path, size
# the first parts of a long list; the last one is in Need
Lacks = TypedDict("Lacks", {"event": Literal["lacks"], "files": Annotated[Wanted, bool]})
Need = TypedDict("Need", {"event": Literal["need"], "files": Wanted, "stage": AbsolutePath, "basis": AbsolutePath})
Source = TypedDict("Source", {"host": str, "path": str})
# what another folder delivered would be lost
Other = TypedDict(
    "Other",
    {
        "event": Literal["other"],
        "source": Source,
        "dest": Annotated[str, bool],
        "deleted": Count,
        "replaced": Count,
    },
)
Waiting = TypedDict("Waiting", {"event": Literal["waiting"], "run": str})
Done = TypedDict(
    "Done",
    {
        "event": Literal["done"],
        "sent": Count,
        "bytes": Count,
        "deleted": Count,
        "kept": list[Path],
        "entries": Count,
        "changed": Count,
    },
)


class Refused(Failed, total=False):
    """busy: another sync to the same folder is under way."""

    busy: bool


Message = Hello | Shared | Lacks | Need | Other | Waiting | Done | Refused


class Spec(Delivery):
    """replaces: the other folders of which what they delivered may be replaced and deleted; True: any."""

    dest: str
    source: Source
    replaces: list[Source] | Literal[True]
