"""The shape of trainers that save on SIGTERM (transformers' and lightning's for preemption): one fails, others save."""

import os
import signal
import sys
import time

rank = os.environ["RANK"]


def save(signum, frame):
    time.sleep(3)
    with open(f"saved-by-{rank}", "w") as f:
        f.write("whole\n")
    print(f"rank {rank} saved on signal {signum}", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
print(f"rank {rank} trains", flush=True)
if rank == "1":
    time.sleep(2)
    sys.exit(42)
time.sleep(300)
