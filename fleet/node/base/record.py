"""runs/RUN, as the leader of a run writes it: events are appended as they come, documents replaced in one step."""

import getpass
import json
import os
import threading
from contextlib import suppress

from fleet.node.base.files import append_whole, private, replace_file
from fleet.node.base.types import Any, Mapping
from fleet.protocol.state import LATEST


def whoami() -> str:
    """Returns USER@MACHINE, for others to see whose run it is."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return "%s@%s" % (user, os.uname()[1])


class Record:
    """path: runs/RUN, absolute."""

    def __init__(self, path: Any) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._waiting = b""

    def append(self, event: "Mapping[str, Any]") -> None:
        """Adds a line to events.jsonl. What a full disk does not take waits for the next one."""
        with self._lock:
            self._waiting += json.dumps(event, default=str).encode() + b"\n"
            with suppress(OSError):
                if append_whole(os.path.join(str(self.path), "events.jsonl"), self._waiting):
                    self._waiting = b""

    def add(self, name: str, text: str) -> str:
        """Appends to a file for people; returns its path. What a full disk does not take is gone."""
        path = os.path.join(str(self.path), name)
        with suppress(OSError), open(path, "a", opener=private) as file:
            file.write(text)
        return path

    def replace(self, name: str, document: "Mapping[str, Any]") -> None:
        """Writes a document. OSError where the disk does not take it."""
        text = json.dumps(document, indent=1, default=str).encode() + b"\n"
        replace_file(os.fsencode(os.path.join(str(self.path), name)), text, 0o600)

    def be_latest(self) -> None:
        """Has `latest` next to it lead here; what is there and is no link, or a disk that has none, stays as it is."""
        around, own = os.path.split(str(self.path))
        link, new = os.path.join(around, LATEST), os.path.join(around, ".%s-%s" % (LATEST, own))
        with suppress(OSError):
            if os.path.islink(link) or not os.path.lexists(link):
                os.symlink(own, new)
                os.rename(new, link)
