"""Writes the record of a run, the folder runs/RUN: appends events, and replaces documents atomically."""

import getpass
import json
import os
import threading
from contextlib import suppress

from fleet.node.base.files import append_whole, private, replace_file
from fleet.node.base.types import Any, Mapping
from fleet.protocol.state import LATEST


def whoami() -> str:
    """Returns USER@MACHINE, which shows other users who started the run."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return "%s@%s" % (user, os.uname()[1])


class Record:
    """Writes the files of one run. path: the absolute path of runs/RUN."""

    def __init__(self, path: Any) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._waiting = b""

    def append(self, event: "Mapping[str, Any]") -> None:
        """Adds a line to events.jsonl. If the disk is full, keeps the line in memory, and writes it with the next
        one."""
        with self._lock:
            self._waiting += json.dumps(event, default=str).encode() + b"\n"
            with suppress(OSError):
                if append_whole(os.path.join(str(self.path), "events.jsonl"), self._waiting):
                    self._waiting = b""

    def add(self, name: str, text: str) -> str:
        """Appends text to a file for people, and returns its path. If the disk is full, the text is lost."""
        path = os.path.join(str(self.path), name)
        with suppress(OSError), open(path, "a", opener=private) as file:
            file.write(text)
        return path

    def replace(self, name: str, document: "Mapping[str, Any]") -> None:
        """Writes the document `name`, and replaces an older one. Raises OSError, for example if the disk is full."""
        text = json.dumps(document, indent=1, default=str).encode() + b"\n"
        replace_file(os.fsencode(os.path.join(str(self.path), name)), text, 0o600)

    def be_latest(self) -> None:
        """Makes the link `latest`, next to the run's folder, lead to that folder. Does nothing if `latest` exists and
        is no link, or if the file system has no links."""
        around, own = os.path.split(str(self.path))
        link, new = os.path.join(around, LATEST), os.path.join(around, ".%s-%s" % (LATEST, own))
        with suppress(OSError):
            if os.path.islink(link) or not os.path.lexists(link):
                os.symlink(own, new)
                os.rename(new, link)
