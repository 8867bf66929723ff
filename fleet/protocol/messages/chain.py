"""The chain that data goes along: what its members say, and the source, who has everything.

Files are numbers: of the manifest's regular files, from 0.
"""

from typing import Annotated, Literal, TypedDict

from fleet.protocol.messages.values import AbsolutePath, Claim, Count, Failed, Matching

Ranges = list[tuple[Count, Count]]  # from, to
FileNumber = Annotated[str, Matching("[0-9]{1,18}")]
Hello = TypedDict("Hello", {"event": Literal["hello"]})
Shared = TypedDict("Shared", {"event": Literal["shared"], "with": str})
# wants: bytes of the stream. unsure: file -> sha256 of what lies there
Lacking = TypedDict("Lacking", {"wants": Ranges, "files": Ranges, "unsure": dict[FileNumber, str]}, total=False)


class Lacks(Lacking):
    """The first parts of long lists; the last ones are in Need."""

    event: Literal["lacks"]


Need = TypedDict(
    "Need",
    {
        "event": Literal["need"],
        "wants": Ranges,
        "files": Ranges,
        "unsure": dict[FileNumber, str],
        "bytes": Count,
        "address": str | None,
        "port": Annotated[int, lambda port: 0 < port < 1 << 16] | None,
        "stages": list[AbsolutePath],
    },
)
At = TypedDict("At", {"event": Literal["at"], "position": Count, "received": Count, "placed": Count, "sent": Count})
# sending to the next one failed. nonsense: it does not keep to the protocol
Link = TypedDict("Link", {"event": Literal["link"], "epoch": int, "connected": bool, "nonsense": bool, "why": str})
Served = TypedDict("Served", {"event": Literal["served"], "epoch": int})
# epoch: of the link that brought it
Corrupt = TypedDict("Corrupt", {"event": Literal["corrupt"], "file": int, "epoch": int | None})
# problems: path, why it is not there
Done = TypedDict("Done", {"event": Literal["done"], "files": Count, "bytes": Count, "problems": list[tuple[str, str]]})


class Refused(Failed, total=False):
    """kind: "mixed" where only some of the destinations are shared with another host."""

    kind: Literal["sync", "mixed"]


Digests = TypedDict("Digests", {"event": Literal["digests"], "files": list[tuple[int, str]]})
Changed = TypedDict("Changed", {"event": Literal["changed"], "files": list[int]})
Sent = TypedDict("Sent", {"event": Literal["at"], "sent": Count})

MemberMessage = Hello | Shared | Lacks | Need | At | Link | Served | Corrupt | Done | Refused
SourceMessage = Hello | Digests | Changed | Sent | Link | Served | Refused


# -- what the head asks for ---------------------------------------------------------------------------------------
class Spec(Claim):
    """every: seconds between reports. tls: the certificate of this transfer, and its key."""

    patience: float
    every: float
    tls: dict[str, str]
    via: str


class MemberSpec(Spec):
    """token: the secret of this member. listen: the address for its listener. targets: path, "f" or "d"."""

    role: Literal["node"]
    host: str
    token: str
    listen: str
    targets: list[tuple[str, str]]


class SourceSpec(Spec):
    """limit: bytes a second."""

    role: Literal["source"]
    limit: int | None
    targets: list[tuple[str, str]]
