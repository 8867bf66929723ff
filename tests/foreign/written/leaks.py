"""The shape of programs that leave shared memory and temporary files: as many at one side as at the other."""

import os
import tempfile
from multiprocessing import resource_tracker, shared_memory

rank = os.environ["RANK"]
block = shared_memory.SharedMemory(f"leak-{rank}", create=True, size=1 << 16)
resource_tracker.unregister(block._name, "shared_memory")
block.close()
with tempfile.NamedTemporaryFile(prefix=f"leak-{rank}-", delete=False) as f:
    f.write(b"left")
os.makedirs("made/by", 0o2750, exist_ok=True)
os.umask(0o077)
path = f"made/by/{rank}"
with open(path, "w") as f:
    f.write(rank)
os.chmod(path, 0o640)
os.symlink(rank, f"made/link-{rank}")
os.mkfifo(f"made/fifo-{rank}")
with open(os.environ["PWD"] + f"/pwd-{rank}", "w") as f:
    f.write(os.getcwd())
print("rank", rank, "leaves")
