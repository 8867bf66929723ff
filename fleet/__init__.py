"""fleet: from a list of hosts to a running distributed training job, and back, one command each.

For programs and notebooks: `fleet.open(...)`, see fleet/api."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet.api import open as open
    from fleet.api import reopen as reopen
    from fleet.api import runs as runs

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`open` and its like, imported when they are asked for: all else of fleet is imported by way of this module."""
    if name in ("open", "reopen", "runs"):
        from fleet import api

        return getattr(api, name)
    raise AttributeError(f"module 'fleet' has no attribute '{name}'")
