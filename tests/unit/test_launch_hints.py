"""Log hints: real last lines of real failures -> the remedy; tracebacks cut out of noise."""

from __future__ import annotations

import pytest

from fleet.rules.ended import Cause, ended_by

CASES = [
    ("ModuleNotFoundError: No module named 'deepspeed'", "deepspeed is not in the interpreter"),
    ("/usr/bin/python3: No module named torch", "torch is not in the interpreter"),
    ("ModuleNotFoundError: No module named 'tqdm.auto'", "tqdm.auto is missing there"),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "kill-port",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "GPU memory ran out"),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory",
        "memory was refused",
    ),
    ("OSError: [Errno 28] No space left on device", "a disk is full"),
    ("RuntimeError: CUDA error: invalid device ordinal", "more ranks than GPUs"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'ds_config.json'", "ds_config.json is not there"),
    (
        "RuntimeError: [/pytorch/gloo/transport/tcp/device.cc:80] ifa != nullptr. Unable to find address for: eth7",
        "GLOO_SOCKET_IFNAME",
    ),
    (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:4567",
        "another rank went away",
    ),
    ("train.py: error: unrecognized arguments: --local_rank=1", "read LOCAL_RANK from the environment"),
    ("train.py: error: unrecognized arguments: --nnodes=2", "options come before SCRIPT"),
    ("python: can't open file '/w/train.py': [Errno 2] No such file or directory", "/w/train.py is not on that node"),
    ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "older than GLIBCXX_3.4.32"),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
        "could not reach each other",
    ),
]


@pytest.mark.parametrize("text, said", CASES)
def test_a_remedy_for_what_users_meet(text: str, said: str) -> None:
    assert said in (ended_by("noise before\n" + text + "\n").remedy or "")


def test_laments_are_marked() -> None:
    text = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection reset by peer"
    assert ended_by(text).collateral
    assert ended_by("ConnectionResetError: [Errno 104] Connection reset by peer").remedy is None  # of redis, of S3


def test_warnings_explain_nothing() -> None:
    noise = "[W1120 22:50:48.46 socket.cpp:207] [c10d] The client socket has failed to connect\n"
    assert ended_by(noise).remedy is None
    assert ended_by(noise + "UserWarning: Permission denied somewhere\nx").remedy is None


def test_the_traceback_speaks_before_the_lines_around_it() -> None:
    trace = "Traceback (most recent call last):\n  File \"t\", line 1\nModuleNotFoundError: No module named 'tqdm'\n"
    cause = ended_by("CUDA out of memory, retrying\n" + trace + "\nConnection reset by peer")
    assert "tqdm is missing" in (cause.remedy or "")


def test_nothing_known_is_no_hint() -> None:
    assert ended_by("all is well") == ended_by("") == Cause()


TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    f()\nValueError: boom'


def traceback_of(text: str) -> str | None:
    return ended_by(text).traceback


def test_tracebacks() -> None:
    assert traceback_of("loss 3\n" + TRACE + "\n\n[W1120] destroy_process_group() was not called") == TRACE
    assert traceback_of("nothing") is None
    chained = TRACE + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE
    assert traceback_of(chained) == chained
    assert traceback_of(TRACE.replace("boom", "first") + "\nretrying\n" + TRACE) == TRACE
    prefixed = "\n".join(f"[rank3]: {line}" for line in TRACE.splitlines())
    assert traceback_of(prefixed) == TRACE
    two_lines = TRACE + "\nwith a second line"
    assert traceback_of(two_lines) == two_lines
    assert traceback_of("Traceback (most recent call last):") is None
    long = TRACE.replace("    f()", "\n".join(f"    f{i}()" for i in range(500)))
    cut = traceback_of(long)
    assert cut is not None and len(cut.splitlines()) == 60 and cut.endswith("boom")
