"""Arms a rank: makes the rank write its stack after a signal. Python imports this file as sitecustomize when it starts.
This file imports no module of fleet.

rank.py puts this file's folder first on the rank's PYTHONPATH. FLEET_ARM has "PID:SIGNAL:FILE", and the old PYTHONPATH
after a newline, if that was set. This file undoes all of that before the rank's own code begins: the environment,
sys.path and the real sitecustomize are then as if this file did not exist. It has Python 2 syntax, as 'python' may be a
Python 2, which must run as usual, too.
"""

import os
import sys


def disarm():
    # type: () -> list[str]
    """Restores the environment and sys.path. Returns the fields of FLEET_ARM: PID, SIGNAL, FILE."""
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
    """Registers the handler, only in the rank itself: its child processes may be any program."""
    import faulthandler

    if int(pid) == os.getpid():
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(int(signum), fd, all_threads=False)


handled = disarm()
try:
    arm(*handled)
except Exception:
    pass  # the stack of this rank cannot be shown then
ours = sys.modules.pop("sitecustomize", None)
try:
    __import__("sitecustomize")
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    if ours is not None:
        sys.modules["sitecustomize"] = ours
