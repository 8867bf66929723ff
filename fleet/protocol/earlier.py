"""What nodes of earlier versions wrote into their status files, read as what they write now."""

from __future__ import annotations

from fleet.protocol.messages.run import RunEnd, RunState

_BY_HAND = ("interrupted", "stopped by ")  # how their sentences began; of 130, the exit code of an interrupt


def end_of(status: RunState) -> RunEnd | None:
    """Who had the run stopped on a node, None: no head. Before there was "end", a sentence had to do."""
    if "end" in status:
        return status["end"]
    sentence = status.get("stopped") or status.get("reason") or ""
    if sentence.startswith(_BY_HAND) or not sentence and status.get("cause") == "asked":
        return {"by": "stop", "host": None, "code": 130, "who": "", "message": sentence or "stopped"}
    return None
