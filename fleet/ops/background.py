"""The names by which a live run's head starts processes of fleet that go on without it.

They stay where they are: fleet on the disk may have been replaced by another version since that head began.
"""

from __future__ import annotations

from typing import Any


def keeper(spec: dict[str, Any]) -> None:
    """Follows a run that was left."""
    from fleet.ops.run.launch.keeper import main

    main(spec)


def janitor(spec: dict[str, Any]) -> None:
    """Stops what could not be reached, when it can be."""
    from fleet.ops.run.follow.janitor import main

    main(spec)
