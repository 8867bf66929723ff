"""Virtual hosts on this machine, out of Linux namespaces, each with a real sshd. It needs Linux and root.

A lab is a switch (a network namespace with a bridge) and hosts plugged into it; this machine, the head, is
plugged in too. Everything lives in those namespaces, so it ends with their first processes: host.py is what
they run, root.py their root, switch.py the cables, names.py the contents of /etc/hosts, lab.py the commands.
"""
