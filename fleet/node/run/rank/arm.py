"""Arms a rank to report where it is: python imports it as sitecustomize, when it starts (imports no module of fleet).

rank.py puts its folder before the rank's PYTHONPATH, and how to undo that into FLEET_ARM: "PID:SIGNAL:FILE", then what
PYTHONPATH was, if it was set, after a newline. Everything is as it would have been before the rank's own code
begins: its environment, sys.path, and the sitecustomize that is there without this one. Python 2 syntax:
that is what 'python' may be, and it is to see nothing of it either.
"""

import os
import sys


def disarm():
    # type: () -> list[str]
    """Take ourselves back; returns what FLEET_ARM held: PID, SIGNAL, FILE."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    sys.path_importer_cache.pop(here, None)
    armed, was_set, path = os.environ.pop("FLEET_ARM", "").partition("\n")
    os.environ.pop("PYTHONPATH", None)
    if was_set:
        os.environ["PYTHONPATH"] = path
    return armed.split(":", 2)


def arm(pid, signum, path):
    # type: (str, str, str) -> None
    """Only the rank itself: what it starts may be anything."""
    import faulthandler

    if int(pid) == os.getpid():
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(int(signum), fd, all_threads=False)


handled = disarm()
try:
    arm(*handled)
except Exception:
    pass  # its stack is not shown, then
ours = sys.modules.pop("sitecustomize", None)
try:
    __import__("sitecustomize")
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    if ours is not None:
        sys.modules["sitecustomize"] = ours
