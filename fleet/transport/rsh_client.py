"""Started by rsync as its remote shell: `FD [-l USER] HOST ARGV...`. Stdlib only, runs with -I -S."""

import json
import os
import socket
import sys
import threading


def main() -> None:
    for fd in (0, 1):
        os.set_blocking(fd, True)  # rsync hands its remote shell non-blocking sockets
    rest = sys.argv[2:]
    if rest and rest[0] == "-l":
        rest = rest[2:]
    argv = json.dumps(rest[1:]).encode()
    conn = socket.socket(fileno=int(sys.argv[1]))
    conn.sendall(len(argv).to_bytes(4, "big") + argv)

    def up() -> None:
        while True:
            data = os.read(0, 1 << 17)
            if not data:
                break
            conn.sendall(data)
        conn.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=up, daemon=True)
    thread.start()
    while True:
        data = conn.recv(1 << 17)
        if not data:
            break
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
    os._exit(0)


if __name__ == "__main__":
    main()
