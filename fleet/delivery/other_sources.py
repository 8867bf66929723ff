"""Whose the files in a destination are: what one folder delivered is not lost to another one's sync without a word."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import PreflightError, Reason
from fleet.inventory.nodeset import fold
from fleet.model import Result
from fleet.protocol.messages.code import Other, Source
from fleet.rules.causes import by_cause

KIND = "other-source"


def question(others: Sequence[Result], here: Source) -> str:
    """What would be lost where, for the user to decide."""
    said = by_cause([(r.host, r.error.message, None) for r in others if r.error is not None])
    return "\n".join(
        [
            *(f"{fold(cause.whose)}: {cause.message}" for cause in said),
            f"Put {here['host']}:{here['path']} there all the same?",
        ]
    )


def refusal(said: Other, host: str, hint: str) -> Result:
    """The refusal to lose what another folder delivered to this host."""
    source = said["source"]
    message = Reason(
        "{to} holds what was synced from {source}: {deleted} of its files would be deleted, {replaced} replaced",
        to=said["dest"],
        source=f"{source['host']}:{source['path']}",
        deleted=said["deleted"],
        replaced=said["replaced"],
    )
    return Result(
        host,
        False,
        error=PreflightError(message, host=host, kind=KIND, hint=hint),
        data={"to": said["dest"], "source": source, "deleted": said["deleted"], "replaced": said["replaced"]},
    )
