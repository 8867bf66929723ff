"""Whether this machine and user can have a lab."""

from __future__ import annotations

import os
import shutil
import sys

from fleet.errors import LabError

TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "chpasswd": "passwd", "sshd": "openssh-server"}
SHAPING = {"tc": "iproute2"}


def which(tool: str) -> str | None:
    """Where a tool is; a user's PATH often lacks the sbin folders."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin:/usr/local/sbin")


def require(shaped: bool = False) -> None:
    """LabError, with what is needed, when there can be no lab here. shaped: links are to be limited."""
    if not sys.platform.startswith("linux"):
        raise LabError(f"the lab is made of Linux namespaces; this is {sys.platform}", hint="use a Linux machine")
    needed = {**TOOLS, **(SHAPING if shaped else {})}
    missing = [tool for tool in needed if which(tool) is None]
    if missing:
        packages = " ".join(sorted({needed[tool] for tool in missing}))
        raise LabError(f"the lab needs {', '.join(missing)}, not found here", hint=f"apt install {packages}")
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes namespaces and mounts", hint="run it as root, or with sudo -H")
