"""Loads paramiko in half the time, and without its log."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any


def _load() -> Any:
    # paramiko needs invoke only for `Match exec`, which fleet never runs. Without it the import takes half the time.
    # The type is Any because the stubs lack the names that fleet extends.
    loaded = "invoke" in sys.modules
    if not loaded:
        sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("paramiko")
    finally:
        if not loaded:
            del sys.modules["invoke"]


paramiko: Any = _load()

# its log has a traceback for every failed connection
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)

from paramiko.buffered_pipe import PipeTimeout as PipeTimeout  # noqa: E402
from paramiko.message import Message as Message  # noqa: E402
from paramiko.packet import Packetizer as Packetizer  # noqa: E402
