"""Defines the messages of kill-port: a node's, about listeners."""

from typing import TypedDict

from fleet.protocol.messages.run import RunId

Listener = TypedDict(
    "Listener",
    {
        "port": int,
        "protocol": str,
        "address": str,
        "pid": int | None,
        "start": int | None,
        "uid": int,
        "user": str,
        "own": bool,
        "command": str | None,
        "run_id": RunId | None,
        "live": bool,
        "age": float | None,
        "refused": str | None,
        "also": list[str],
    },
)
Scanned = TypedDict("Scanned", {"listeners": list[Listener]})
# listeners: those that are left. reasons: pid -> why it was not ended
Ended = TypedDict("Ended", {"listeners": list[Listener], "ended": list[int], "reasons": dict[str, str]})
