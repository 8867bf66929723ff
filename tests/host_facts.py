"""The facts of a healthy host, and of one where some of them are others."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = json.loads((Path(__file__).parent / "golden/check/facts.json").read_text())


def facts_of(name: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """changes: dotted path -> value, "<missing>" for none."""
    facts = copy.deepcopy(BASE)
    facts["hostname"] = facts["boot_id"] = name
    for path, value in (item for change in changes for item in change.items()):
        *above, last = path.split(".")
        at = facts
        for part in above:
            at = at[part]
        if value == "<missing>":
            del at[last]
        else:
            at[last] = value
    return facts
