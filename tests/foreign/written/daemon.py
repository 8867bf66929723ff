"""The shape of programs that leave a server behind (ray start, tensorboard, wandb's service): it outlives its rank."""

import os
import subprocess
import sys

subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)", "left-behind"],
    start_new_session=True,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
print("rank", os.environ["RANK"], "ends")
