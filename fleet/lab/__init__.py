"""Virtual hosts on this machine, out of Linux namespaces, each with a real sshd. It needs Linux and root.

A lab is a switch (a network namespace with a bridge) and hosts plugged into it; this machine, the head, is
plugged in too. Everything lives in those namespaces, so it ends with their first processes: host.py is what
they run, switch.py the cables, names.py what this machine's /etc/hosts says, lab.py the commands.
"""

from fleet.lab.lab import Lab
from fleet.lab.state import inventory_path

__all__ = ["Lab", "inventory_path"]
