"""Hosts that share a folder: one of them writes it, the others have what that one has."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.answers.sync import Received, Synced
from fleet.errors import HostFailed
from fleet.model import Result


def shared_with(result: Result) -> str | None:
    """The host that has the same folder, and writes it."""
    return result.answer.shared_with if isinstance(result.answer, Synced | Received) else None


def with_shared(results: Sequence[Result]) -> tuple[Result, ...]:
    """A host that shares the folder of another has what that one has: nothing where it failed."""
    of = {result.host: result for result in results}

    def final(result: Result) -> Result:
        writer = of.get(shared_with(result) or "")
        if writer is None or writer.ok or not result.ok:
            return result
        error = HostFailed(f"shares its folder with host {writer.host}, which failed", host=result.host, kind="sync")
        return Result(result.host, False, error=error, answer=result.answer)

    return tuple(map(final, results))
