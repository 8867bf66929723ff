"""A command's outputs as lines of text, for what carries nothing else: pdsh. transport/pdsh.py sends this whole."""

import os
import select
import subprocess
import sys
from base64 import b64decode, b64encode

CHUNK_BYTES = 12000


def main() -> None:
    """Run argv[1], base64 of a shell line. Each line printed is "1" or "2", for stdout or stderr, and base64 of some
    bytes. Ends as the shell did, 128+n for signal n."""
    out = sys.stdout.buffer  # one that is stopped and goes on meanwhile writes a part: os.write leaves the rest to us
    out.write(b"\nFLEET-LINES\n")
    out.flush()
    shell = ["/bin/sh", "-c", os.fsdecode(b64decode(sys.argv[1]))]
    process = subprocess.Popen(shell, bufsize=0, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    kinds = {process.stdout.fileno(): b"1", process.stderr.fileno(): b"2"}
    poll = select.poll()
    for fd in kinds:
        poll.register(fd, select.POLLIN)
    while kinds:
        for fd, _ in poll.poll():
            data = os.read(fd, CHUNK_BYTES)
            if data:
                out.write(kinds[fd] + b64encode(data) + b"\n")
                out.flush()
            else:
                poll.unregister(fd)
                del kinds[fd]
    status = process.wait()
    sys.exit(status if status >= 0 else 128 - status)
