"""Started by rsync as its remote shell, `FD HOST ARGV...`: hands that argv and its own stdin and stdout to fleet, and
ends when fleet lets go. Stdlib only, runs with -I -S."""

import json
import socket
import sys

if __name__ == "__main__":
    fleet = socket.socket(fileno=int(sys.argv[1]))
    socket.send_fds(fleet, [json.dumps(sys.argv[3:]).encode()], [0, 1])
    fleet.recv(1)
