"""Of our own: what an argument list may hold."""

import os
import sys

for word in sys.argv[1:]:
    sys.stdout.buffer.write(repr(os.fsencode(word)).encode() + b"\n")
