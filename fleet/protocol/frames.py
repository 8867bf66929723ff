"""Defines the frames that a node program and the head exchange.

node -> head: PREAMBLE once, then frames. The head skips text before the PREAMBLE, such as the output of a .bashrc. A
frame is a header (1 byte kind, uint32 stream, uint32 length) and the payload.
head -> node: line 1 is the spec, a JSON object. Then come control lines, each a JSON object with "op": {"op": "ping"},
or one that the program defines. End of file means that the head is gone.
"""

PREAMBLE = b"\0FLEET1\n"
HEADER = ">cII"

OUTPUT = b"O"  # bytes of a stream
MESSAGE = b"J"  # a JSON object
HEARTBEAT = b"H"  # empty, or the amount of work done, if it has grown since the last one
EXIT = b"X"  # {"exit_status": n}, the last frame

# Limits of a frame's payload: a node that announces more is broken, and must not fill the head's memory.
LIMITS = {OUTPUT: 1 << 20, MESSAGE: 16 << 20, HEARTBEAT: 1024, EXIT: 1024}
HEARTBEAT_SECONDS = 1.0
