"""Reads the output of ranks that failed: all that a head reads, where this python can, else nothing."""

import sys

from fleet.node.base.types import Any
from fleet.node.gang.ends import Failure
from fleet.node.gang.verdict import Words

READER = "fleet.ops.run.end.sent"  # of the head half, which takes Python 3.10


class Last(Words):
    """Holds the last lines of ranks that failed, and reads nothing in them."""

    def __init__(self, texts: "dict[tuple[str, int], dict[str, str]]") -> None:
        self.texts = texts

    def last(self, failure: Failure) -> str:
        return self.texts.get((failure.host, failure.rank or 0), {}).get("tail", "")


def reader_half() -> Any:
    """Returns what reads the ranks' output, where this python can; None."""
    if sys.version_info < (3, 10):
        return None
    try:
        return __import__(READER, fromlist=["words"])
    except ImportError:
        return None
