"""The shape of logging set-ups for containers (gunicorn's, supervisord's): a FileHandler of /dev/stdout."""

import logging
import os
import subprocess
import sys

handler = logging.FileHandler("/dev/stdout", "w")
errors = logging.FileHandler("/dev/stderr", "w")
errors.setLevel(logging.WARNING)
logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", handlers=[handler, errors])
logger = logging.getLogger("train")

for step in range(120):
    print(f"step {step}", flush=True)
    if step % 10 == 0:
        logger.info("rank %s at step %d", os.environ["RANK"], step)
    if step % 40 == 0:
        logger.warning("slow step %d", step)
        with open("/dev/stdout", "w") as f:
            f.write(f"opened at {step}\n")
subprocess.run(["sh", "-c", "echo from a shell > /dev/stderr; echo to a file > /dev/stdout"], check=True)
print("end", file=sys.stderr)
