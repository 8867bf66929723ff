"""Of our own: all bytes on both streams, no end of line at the end, progress bars, lines of 1 MB."""

import os
import sys

rank = int(os.environ["RANK"])
every = bytes(range(256))
for number in range(20):
    sys.stdout.buffer.write(b"%d.%d " % (rank, number) + every + b"\n")
    sys.stderr.buffer.write(every[::-1] * 3)
for percent in range(0, 101, 5):
    sys.stderr.buffer.write(b"\r%3d%%|%s|" % (percent, b"\xe2\x96\x88" * (percent // 10)))
for letter in b"xyz":
    sys.stdout.buffer.write(bytes([letter]) * 1_000_000 + b"\n")
    sys.stderr.buffer.write(bytes([letter]) * 1_000_000 + b"\r\n")
sys.stdout.buffer.write(b"no end of line")
