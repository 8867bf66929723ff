"""Defines the messages of a chain's members, along which data is sent.

Files are numbers: indexes of the manifest's regular files, from 0.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.code import Own
from fleet.protocol.messages.code import Shared as Shared
from fleet.protocol.messages.values import Count, Delivery, Failed, Path, Sha256, Within

Ranges = list[tuple[Count, Count]]  # from, to
Hello = TypedDict("Hello", {"event": Literal["hello"]})
# files on the node that may equal the source's; more: another part of the list follows
Doubts = TypedDict("Doubts", {"event": Literal["doubts"], "items": list[Count], "more": bool})
# wants: bytes of the stream
Lacking = TypedDict("Lacking", {"wants": Ranges, "files": Ranges}, total=False)


class Lacks(Lacking):
    """The first parts of long lists; Need has the last parts."""

    event: Literal["lacks"]


Need = TypedDict(
    "Need",
    {
        "event": Literal["need"],
        "wants": Ranges,
        "files": Ranges,
        "bytes": Count,
        "address": str,
        "port": Annotated[int, lambda port: 0 < port < 1 << 16],
    },
)
At = TypedDict("At", {"event": Literal["at"], "position": Count, "received": Count, "placed": Count, "sent": Count})
# sending to the next member failed
Trouble = Literal["lost", "unreachable", "protocol"]
Link = TypedDict("Link", {"event": Literal["link"], "epoch": int, "kind": Trouble, "why": str})
# epoch: of the link that sent it
Corrupt = TypedDict("Corrupt", {"event": Literal["corrupt"], "file": int, "epoch": int})
# problems: path, why it is not in place. left: the node's own files that stay. aside: where replaced files are kept
Done = TypedDict(
    "Done",
    {
        "event": Literal["done"],
        "files": Count,
        "bytes": Count,
        "problems": list[tuple[str, str]],
        "left": list[Path],
        "aside": list[Path],
    },
)


class Refused(Failed, total=False):
    """The member cannot take part. kind: "mixed" if only some of its destinations are shared with another host."""

    kind: Literal["sync", "mixed"]


# -- a node's messages about files that it has, and as the first sender of a chain ----------------------------------
Mode = Annotated[int, lambda mode: 0 <= mode <= 0o7777]
# path (bytes as surrogateescape text, relative; "" is the source itself), kind, mode, size, mtime_ns, link target
Nanoseconds = Annotated[int, lambda number: abs(number) < 1 << 63]
Entry = tuple[Within | Literal[""], Literal["f", "d", "l"], Mode, Count, Nanoseconds, Path | Literal[""]]
# path: the root. more: another message continues it. skipped, linked: see Walk. unsafe: links to paths that are not
# listed, and their targets. The last message has these. mode: None for a file. Without entries the path does not exist.
Tree = TypedDict(
    "Tree",
    {
        "event": Literal["tree"],
        "path": Path,
        "entries": list[Entry],
        "allocated": dict[Within | Literal[""], Count],
        "skipped": list[Within],
        "linked": list[tuple[int, int]],
        "unsafe": list[tuple[Within, Path]],
        "mode": Mode | None,
        "more": bool,
    },
)
News = TypedDict("News", {"event": Literal["news"], "digests": list[tuple[Count, Sha256]], "changed": list[Count]})
# grown: files that have become longer; their digests are those before that
Sent = TypedDict("Sent", {"event": Literal["sent"], "bytes": Count, "grown": list[Count]})
FirstMessage = Tree | News | Sent | Link | Failed
MemberMessage = Hello | Shared | Doubts | Own | Lacks | Need | At | Link | Corrupt | Done | Refused


# -- the head's requests ------------------------------------------------------------------------------------------
class MemberSpec(Delivery):
    """The request to a member. every: seconds between reports. tls: the certificate of this transfer, and its key.
    token: the secret of this member. listen: the address for its listener. force: see code.Spec. targets: [(path, "f"
    or "d")]."""

    every: float
    tls: dict[str, str]
    force: bool | Sequence[str]
    token: str
    listen: str
    targets: list[tuple[str, str]]


class FirstSpec(TypedDict):
    """The request to a node that is the source. paths: those to send. copy_unsafe_links: send the targets of links that
    lead out, in place of the links. tls, every, patience: see MemberSpec. limit: bytes a second."""

    paths: list[str]
    copy_unsafe_links: bool
    tls: dict[str, str]
    limit: int | None
    every: float
    patience: float
