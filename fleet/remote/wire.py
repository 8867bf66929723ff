"""What every remote program begins with: the frames to the head and the control lines from it.

fleet/transport/program.py ships this text, then the program's parts and its own, over stdin to a constant
bootstrap; names defined here are globals there. Standard library only, Python 3.6 syntax.

Interpreter start is most of what a short command costs a node, so this part imports only what is compiled
into the interpreter: json, threading, signal and subprocess would treble it.

node -> head: PREAMBLE once (what a chatty .bashrc printed before it is skipped), then frames:
1 byte type, uint32 stream, uint32 length, payload.
    O  output bytes of a stream        J  a JSON object
    H  heartbeat, empty                X  JSON {"exit_status": n}, the last frame
head -> node: line 1 the spec, a JSON object; then control lines, each a JSON object with "op":
    {"op": "ping"}, or what the program defines. End of file means the head is gone.
"""

import _signal
import _thread
import os
import sys
import time
from struct import pack

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

PREAMBLE = b"\0FLEET1\n"
HEARTBEAT_SECONDS = 1.0
_lock = _thread.allocate_lock()
_out = 1


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def frame(kind, payload=b"", stream=0):
    """Send one frame; safe from several threads. Raises OSError (EPIPE) when the head is gone."""
    with _lock:
        write_all(_out, pack(">cII", kind, stream, len(payload)) + payload)


def send_exit(status):
    frame(b"X", b'{"exit_status": %d}' % status)


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
                frame(b"H")
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


# -- processes ------------------------------------------------------------------------------------------
def read_file(path, limit=1 << 20):
    """Bytes of a /proc-like file, b"" when it is gone or forbidden."""
    try:
        with open(path, "rb") as f:
            return f.read(limit)
    except OSError:
        return b""


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def start_time(pid):
    """Clock ticks since boot at which pid started, or None when it is gone (or a zombie)."""
    stat = read_file("/proc/%d/stat" % pid)
    if not stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def pids_with_env(name, value):
    """[(pid, start_time)] of live processes whose environment holds NAME=VALUE, this one excepted.

    The environment is the one a process was exec'ed with, inherited by all its descendants, whatever
    session or parent they moved to: the one mark of a run that survives daemonising.
    """
    wanted = ("%s=%s" % (name, value)).encode()
    found = []
    for pid in pids():
        if pid != os.getpid() and wanted in read_file("/proc/%d/environ" % pid, 1 << 22).split(b"\0"):
            born = start_time(pid)
            if born is not None:
                found.append((pid, born))
    return found


def signal_marked(name, value, signum):
    """Send signum to every process with NAME=VALUE in its environment; returns how many there were."""
    found = pids_with_env(name, value)
    for pid, born in found:
        if start_time(pid) == born:
            try:
                os.kill(pid, signum)
            except OSError:
                pass
    return len(found)


def end_marked(name, value, grace, poll=0.05, hard=10.0):
    """SIGTERM, wait up to `grace` seconds, SIGKILL until none is left; returns the pids that would not die."""
    deadline = time.monotonic() + grace
    if grace > 0:
        signal_marked(name, value, _signal.SIGTERM)
        while time.monotonic() < deadline:
            left = pids_with_env(name, value)
            if not left:
                return []
            time.sleep(poll)
    deadline = time.monotonic() + hard
    while time.monotonic() < deadline:
        if not signal_marked(name, value, _signal.SIGKILL):
            return []
        time.sleep(poll)
    return [pid for pid, _ in pids_with_env(name, value)]


def expand_user(path):
    """~ and ~user as the node knows them."""
    return os.path.expanduser(path)


def encode(text):
    """A word of the head's as the bytes that exec and files take, also where it is no valid UTF-8."""
    return text.encode("utf-8", "surrogateescape")
