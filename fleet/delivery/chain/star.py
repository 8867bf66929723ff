"""`--via rsync`: the same broadcast where nodes cannot reach each other; this machine sends to each of them.

Only the way of the bytes differs. rsync stages the files that a node lacks, over the session that is open already;
the node verifies them and puts them in place as those of the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.delivery.chain.member import Member
from fleet.delivery.manifest import Manifest
from fleet.events import Progress
from fleet.node.delivery.tree import travelling
from fleet.runtime import Runtime
from fleet.transport import rsh
from fleet.transport.base import Session


def send(
    session: Session, member: Member, manifest: Manifest, sources: Sequence[Path], limit: int | None, runtime: Runtime
) -> int:
    """Stage what the member lacks, then tell it so; the bytes that rsync sent. Raises as transport.rsh.stage does.

    limit: bytes a second for this host.
    """
    sent = 0

    def moved(count: int) -> None:
        nonlocal sent
        sent += count
        runtime.emit(Progress(member.host.name, "receiving", min(sent, member.need["bytes"]), member.need["bytes"]))

    # what an interrupted transfer left is the basis of the next one
    options = ["--inplace", *([f"--bwlimit={max(1, limit // 1024)}"] if limit else [])]
    options += ["--copy-links"] if manifest.followed else []
    for number, source in enumerate(sources):
        paths = [manifest.files[i][1] for i in member.lacking() if manifest.files[i][0] == number]
        if not paths:
            continue
        source = source.resolve()
        folder = source
        if paths == [""]:
            folder, paths = source.parent, [travelling(source.name)]
        rsh.stage(session, options, folder, member.need["stages"][number], paths, cancel=member.cancel, moved=moved)
    member.tell(op="staged", names=[source.resolve().name for source in sources])
    return sent
