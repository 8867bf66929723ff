"""Runs in each process of fleet, on head and node: before it changes or opens anything below a folder, the neighbour
has a moment. Node programs get it in front of the code that they begin with; it stands alone."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # nothing that a node program would wait for
    from typing import Any

CHANGES = {"open": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2}
CHANGES.update(
    {f"os.{name}": 1 for name in ("mkdir", "remove", "rmdir", "chmod", "chown", "utime", "truncate", "scandir")}
)
CHANGES["os.listdir"] = 1


class Hook:
    """Asks the neighbour at `address` about paths below `base`, while `on`."""

    def __init__(self, address: str, base: str) -> None:
        self.address, self.base = address, base
        self.on = True
        self.own = threading.local()
        self.asked = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on or event not in CHANGES or getattr(self.own, "busy", False):
            return
        self.own.busy = True
        try:
            paths = [path for name in args[: CHANGES[event]] for path in self.full(name, event, args)]
            paths = [path for path in paths if path.startswith(self.base)]
            if paths:
                self.ask(paths)
        finally:
            self.own.busy = False

    def full(self, name: object, event: str, args: tuple[Any, ...]) -> list[str]:
        """Where that may be: an audit event of open does not say from which folder."""
        if isinstance(name, int):
            return []
        if not isinstance(name, (str, bytes)):
            return []
        text = os.fsdecode(name)
        words = text.split("/")
        if words[1:2] == ["proc"] and words[3:4] == ["fd"]:  # as node/base/beneath.py has them
            try:
                return [os.path.normpath(os.path.join(os.readlink("/".join(words[:5])), *words[5:]))]
            except OSError:
                return []
        if os.path.isabs(text):
            return [os.path.normpath(text)]
        folders = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                to = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if to.startswith(self.base) and os.path.isdir(to):
                folders.add(to)
        return [os.path.join(folder, text) for folder in sorted(folders)] + [os.path.abspath(text)]

    def ask(self, paths: list[str]) -> None:
        self.asked += 1
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(20)
            one.connect(self.address)
            one.send(json.dumps({"paths": paths[:40]}).encode())
            one.recv(1 << 18)


def install(address: str, base: str) -> Hook:
    hook = Hook(address, base)
    sys.addaudithook(hook)
    return hook
