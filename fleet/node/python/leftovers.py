"""Clears away what a pip that was cut off leaves and trips over.

pip puts back what it was replacing; what it had added already stays, and is overwritten by the next install.
"""

import os
import re
import shutil

from fleet.node.base.types import Any
from fleet.node.base.types import wheels as messages


def sweep(answer: "dict[str, Any]", wheels: "list[messages.Carried]", states: "dict[str, Any]") -> None:
    """Take away what an interrupted pip leaves and trips over: a dist-info without RECORD, and "~" names."""
    for wheel in wheels:
        info = states[wheel["name"]].get("info")
        if info and os.path.dirname(info) == answer["target"]:
            shutil.rmtree(info, ignore_errors=True)
    ours = {module[1:] for wheel in wheels for module in wheel["modules"]}
    for name in os.listdir(answer["target"]) if os.path.isdir(answer["target"]) else ():
        if name.startswith("~") and (name[1:] in ours or re.match(r"[\w.]+-[^-]+\.dist-info$", name[1:])):
            shutil.rmtree(os.path.join(answer["target"], name), ignore_errors=True)
