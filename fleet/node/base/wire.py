"""What every program of the node half begins with: the frames to the head and the control lines from it.

Interpreter start is most of what a short command costs a node, so this imports only what is compiled into the
interpreter: json, threading, signal and subprocess would treble it.
"""

import _thread
import os
import sys
import time
from struct import pack

from fleet.protocol.frames import EXIT, HEADER, HEARTBEAT, HEARTBEAT_SECONDS, MESSAGE, PREAMBLE

try:
    from _json import make_scanner

    class _Strict:
        """What json.JSONDecoder() is to its own C scanner."""

        strict, object_hook, object_pairs_hook, array_hook = True, None, None, None
        parse_float, parse_int, parse_constant, memo = float, int, None, {}

    _scan = make_scanner(_Strict)

    def loads(text):
        """A JSON object at the start of text; ValueError for anything else."""
        try:
            return _scan(text, 0)[0]
        except StopIteration:
            raise ValueError("not JSON: %r" % text[:80]) from None
except (ImportError, AttributeError, TypeError):
    from json import loads
_lock = _thread.allocate_lock()
_out = 1


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def frame(kind, payload=b"", stream=0):
    """Send one frame; safe from several threads. Raises OSError (EPIPE) when the head is gone."""
    with _lock:
        write_all(_out, pack(HEADER, kind, stream, len(payload)) + payload)


def send_exit(status):
    frame(EXIT, b'{"exit_status": %d}' % status)


def start():
    """Send the preamble, return the spec (a dict)."""
    write_all(_out, PREAMBLE)
    return loads(sys.stdin.buffer.readline().decode("utf-8"))


def start_heartbeat(seconds=HEARTBEAT_SECONDS):
    """A thread that tells the head we live; it ends quietly when the head is gone."""

    def beat():
        try:
            while True:
                time.sleep(seconds)
                frame(HEARTBEAT)
        except OSError:
            pass

    _thread.start_new_thread(beat, ())


def control_lines():
    """Control messages (dicts) until the head closes; blocking."""
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        try:
            yield loads(line.decode("utf-8"))
        except ValueError:
            continue


def send_json(message):
    from json import dumps

    frame(MESSAGE, dumps(message).encode("utf-8", "surrogateescape"))


def in_parts(items, size=500):
    """A list as lists that fit into a message each, one at least."""
    return [items[at : at + size] for at in range(0, len(items), size)] or [[]]


def encode(text):
    """A word of the head's as the bytes that exec and files take, also where it is no valid UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def decode(data):
    """What encode() made of a word, or the name of a file, as it goes to the head."""
    return data.decode("utf-8", "surrogateescape")
