"""A command's outputs as lines of text, whatever befalls who makes them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path

from fleet.node import lines
from fleet.node.base.processes import state_of
from tests.node.nodes import until


def test_a_stop_in_the_middle_of_a_write_costs_no_byte() -> None:
    """write() ends early where its process is stopped, and goes on, while the reader is slow."""
    line = b64encode(b"seq 200000").decode()
    argv = [sys.executable, "-I", "-S", "-c", Path(lines.__file__).read_text() + "main()", line]
    out, into = os.pipe()
    with subprocess.Popen(argv, stdout=into) as process, contextlib.ExitStack() as last:
        last.callback(process.kill)

        def waits() -> bool:
            return not select.select([], [into], [], 0)[1] and state_of(process.pid) == "S"

        until(waits)
        begun = os.read(out, 8192)  # room for a part of the next line
        until(waits)
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: state_of(process.pid) == "T")
        os.kill(process.pid, signal.SIGCONT)
        os.close(into)
        said = (begun + b"".join(iter(lambda: os.read(out, 1 << 16), b""))).split(b"\n")
    os.close(out)
    assert said[:2] == [b"", b"FLEET-LINES"]
    whole = b"".join(b64decode(one[1:]) for one in said[2:])
    assert whole == b"".join(b"%d\n" % number for number in range(1, 200001)), len(whole)
