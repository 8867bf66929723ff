"""fleet: from a list of hosts to a running distributed training job, and back, one command each.

For programs and notebooks: `fleet.open(...)`, see fleet/api."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fleet.version import __version__ as __version__

if TYPE_CHECKING:
    from fleet import api as api
    from fleet.api import open as open
    from fleet.api import reopen as reopen
    from fleet.api import report as report
    from fleet.api import runs as runs


def __getattr__(name: str) -> Any:
    """Imports `open` and the other names of the API at their first use: an import of any module of fleet runs this
    file."""
    if name in ("api", "open", "reopen", "report", "runs"):
        api = import_module("fleet.api")
        return api if name == "api" else getattr(api, name)
    raise AttributeError(f"module 'fleet' has no attribute '{name}'")
