"""The frames in which a program on a node talks to the head.

node -> head: PREAMBLE once (what a chatty .bashrc printed before it is skipped), then frames: a header of 1 byte kind,
uint32 stream, uint32 length, and the payload.
head -> node: line 1 the spec, a JSON object; then control lines, each a JSON object with "op": {"op": "ping"}, or what
the program defines. End of file means the head is gone.
"""

PREAMBLE = b"\0FLEET1\n"
HEADER = ">cII"

OUTPUT = b"O"  # bytes of a stream
MESSAGE = b"J"  # a JSON object
HEARTBEAT = b"H"  # empty, or how much work is done where that has grown since the last
EXIT = b"X"  # {"exit_status": n}, the last frame

# What a frame of each kind may hold: a node that announces more is broken, and must not fill the head's memory.
LIMITS = {OUTPUT: 1 << 20, MESSAGE: 16 << 20, HEARTBEAT: 1024, EXIT: 1024}
HEARTBEAT_SECONDS = 1.0
