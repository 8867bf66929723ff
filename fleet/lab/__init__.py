"""Makes virtual hosts on this machine out of Linux namespaces, each with a real sshd. It needs Linux and root.

A lab is a switch (a network namespace with a bridge) and hosts that are connected to it, as is this machine, the head.
The namespaces end with their first processes, which run host.py. root.py makes their root, switch.py the cables,
names.py the contents of /etc/hosts, and lab.py has the commands.
"""
