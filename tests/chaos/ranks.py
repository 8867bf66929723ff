#!/usr/bin/python3
"""What runs as ranks while something is done to them: ranks.py HOW [WHO]. HOW befalls rank WHO, the others go on."""

import os
import signal
import subprocess
import sys
import time

how, who = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1
rank = int(os.environ["RANK"])
print("up", rank, flush=True) if how != "ticks" else None


def save(signum: int, frame: object) -> None:
    subprocess.run(["sh", "-c", f"sleep 1; echo saved >/root/saved-{rank}"], check=True)
    sys.exit(0)


if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "save":
    signal.signal(signal.SIGTERM, save)
if how == "ticks":
    for i in range(who):
        print("tick", i, flush=True)
        time.sleep(0.01)
    sys.exit(0)
if how == "flood":
    block = b"".join(b"rank %d line %d\n" % (rank, i) for i in range(who))
    while block:
        try:
            block = block[os.write(1, block) :]
        except OSError:  # no room for its log
            os._exit(7)
    sys.exit(0)
if how == "forever":
    while True:
        print("a line that nobody reads")
time.sleep(1)
if rank == who:
    print("about to", how, file=sys.stderr, flush=True)
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
elif how == "early" and rank == 3:
    time.sleep(2)
    print("Connection closed by peer", file=sys.stderr)
    sys.exit(9)
time.sleep(600)
