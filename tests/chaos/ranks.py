#!/usr/bin/python3
"""What runs as ranks while something is done to them: ranks.py HOW [WHO]. HOW befalls rank WHO, the others go on."""

import os
import signal
import subprocess
import sys
import time


def counted(rank: int, step: int) -> "tuple[bytes, bytes]":
    """What a counting rank writes in a step, to stdout and to stderr: numbered lines; some rewrite themselves as
    progress bars do, some are longer than a frame."""
    bar = b"".join(b"\r%3d%%|%s" % (part, b"#" * part) for part in (10, 50, 100)) + b"\r" if step % 10 == 3 else b""
    long = b" " + b"x" * 70000 if step % 200 == 50 else b""
    return bar + b"rank %d line %d%s\n" % (rank, step, long), b"rank %d says %d\n" % (rank, step)


def put(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError:  # no room for its log
            os._exit(7)


def resume(rank: int, steps: int) -> None:
    """Counts from its checkpoint on, which lies on its own node."""
    path = "/root/saved-" + os.environ["LOCAL_RANK"]
    begin = 0
    if os.path.exists(path):
        with open(path) as f:
            begin = int(f.read())
    for step in range(begin, steps):
        put(1, b"rank %d line %d\n" % (rank, step))
        if step % 10 == 9:
            with open(path + ".new", "w") as f:
                f.write(str(step + 1))
            os.replace(path + ".new", path)
        time.sleep(0.01)


STOPS = (signal.SIGINT, signal.SIGTERM)


def save(signum: int, frame: object) -> None:
    subprocess.run(["sh", "-c", "sleep 1; echo saved >/root/saved-" + os.environ["RANK"]], check=True)
    sys.exit(0)


def at_once(how: str, who: int, rank: int) -> bool:
    """What does not wait to befall anybody; True when that was all."""
    if how == "stubborn":
        for signum in STOPS:
            signal.signal(signum, signal.SIG_IGN)
    if how == "save":
        for signum in STOPS:
            signal.signal(signum, save)
    if how == "hidden":  # in a session of its own, with an empty environment
        forever = "trap '' TERM; while sleep 1; do :; done"
        subprocess.run(["/usr/bin/setsid", "-f", "/bin/sh", "-c", forever], env={}, check=True)
    if how == "count":
        for step in range(who):
            for fd, data in zip((1, 2), counted(rank, step), strict=True):
                put(fd, data)
            time.sleep(0.01)
    if how == "flood":
        put(1, b"".join(b"rank %d line %d\n" % (rank, i) for i in range(who)))
    while how == "forever":
        print("a line that nobody reads")
    if how == "resume":
        resume(rank, who)
    return how in ("count", "flood", "resume")


def befall(how: str, rank: int) -> None:
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise RuntimeError(f"boom {rank}")
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "daemon":
        subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; sleep 1000; :"])
        time.sleep(0.5)
        sys.exit(4)
    if how == "bare":
        subprocess.Popen(["env", "-i", "/usr/bin/setsid", "/bin/sleep", "1000"])
        time.sleep(0.5)
        sys.exit(5)
    if how == "early":
        sys.exit(0)


def main() -> None:
    how, who = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1
    rank = int(os.environ["RANK"])
    if how not in ("count", "resume"):
        print("up", rank, flush=True)
    if at_once(how, who, rank):
        return
    time.sleep(1)
    if rank == who:
        print("about to", how, file=sys.stderr, flush=True)
        befall(how, rank)
    elif how == "early" and rank == 3:
        time.sleep(2)
        print("Connection closed by peer", file=sys.stderr)
        sys.exit(9)
    time.sleep(600)


if __name__ == "__main__":
    main()
