"""The shape of a rank that NCCL's watchdog or a C++ assertion takes down: os.abort, with what it still has printed."""

import os
import sys
import time

print("rank", os.environ["RANK"], "before", flush=True)
sys.stderr.write("terminate called after throwing an instance of 'c10::DistBackendError'\n")
sys.stderr.flush()
if os.environ["RANK"] == os.environ.get("ABORTS", "0"):
    time.sleep(1)
    os.abort()
time.sleep(300)
