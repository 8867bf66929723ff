"""`--via rsync`: the same broadcast where nodes cannot reach each other; this machine sends to each of them.

Only the way of the bytes differs. rsync stages the files that a node lacks, over the session that is open already;
the node verifies them and puts them in place as those of the chain.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fleet.events import Progress
from fleet.ops.broadcast.manifest import Manifest
from fleet.ops.broadcast.member import Member
from fleet.ops.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.rsh import rsync

# --inplace: what an interrupted transfer left is the basis of the next one
RSYNC = ("--times", "--from0", "--files-from=-", "--no-implied-dirs", "--inplace", "--partial", "--timeout=60")


def send(
    session: Session, member: Member, manifest: Manifest, sources: Sequence[Path], limit: int | None, runtime: Runtime
) -> int:
    """Stage what the member lacks, then tell it so; the bytes that rsync sent. Raises as transport.rsh.rsync does.

    limit: bytes a second for this host.
    """
    sent = 0

    def moved(count: int) -> None:
        nonlocal sent
        sent += count
        runtime.emit(Progress(member.host.name, "receiving", min(sent, member.need["bytes"]), member.need["bytes"]))

    options = [*RSYNC, *([f"--bwlimit={max(1, limit // 1024)}"] if limit else [])]
    for number, source in enumerate(sources):
        paths = [manifest.files[i][1] for i in member.lacking() if manifest.files[i][0] == number]
        if not paths:
            continue
        source = source.resolve()
        stage = os.fsdecode(member.need["stages"][number].encode("utf-8", "surrogateescape"))
        if paths == [""]:
            names, folder = os.fsencode(source.name) + b"\0", source.parent
        else:
            names, folder = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths), source
        rsync(session, options, folder, stage, names, cancel=member.cancel, moved=moved)
    member.tell(op="staged", names=[source.resolve().name for source in sources])
    return sent
