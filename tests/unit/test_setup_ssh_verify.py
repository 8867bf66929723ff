"""The verifying script against an ssh that is a stub, and what is made of its answer."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fleet.ops.setup_ssh.verify import Pair, as_error, from_head, parse, text
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport

STUB = """#!/bin/sh
[ "$1" = -Q ] && { echo curve25519-sha256; echo sntrup761x25519-sha512@openssh.com; exit 0; }
while [ "$1" != -- ]; do printf '%s ' "$1" >>"$0.args"; shift; done
echo "$2" >>"$0.asked"
case $2 in
    good*) exit 0 ;;
    busy) [ $(grep -c busy "$0.asked") -ge 3 ] && exit 0
          echo "kex_exchange_identification: Connection closed by remote host" >&2; exit 255 ;;
    dead*) echo "ssh: connect to host $2 port 22: Connection timed out" >&2; exit 255 ;;
    odd) printf 'two\\nlines' >&2; exit 7 ;;
    *) echo "me@$2: Permission denied (publickey)." >&2; exit 255 ;;
esac
"""


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    stub = tmp_path / "ssh"
    stub.write_text(STUB)
    stub.chmod(0o755)
    return stub


def verify(stub: Path, targets: list[str], lanes: int = 2) -> dict[str, str | None]:
    done = subprocess.run(
        ["sh", "-c", 'eval "$(cat)"'],
        input=text(targets, lanes, 5),
        capture_output=True,
        timeout=300,
        env={"PATH": f"{stub.parent}:/usr/bin:/bin"},
    )
    assert done.stderr == b""
    return {p.target: p.reason for p in parse("a", targets, b"noise of a .bashrc" + done.stdout)}


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_every_target_is_asked_once_and_reasons_come_back(stub: Path, lanes: int) -> None:
    targets = [*(f"good{i}" for i in range(5)), "locked", "odd"]
    answer = verify(stub, targets, lanes)
    wrong = {"locked": "me@locked: Permission denied (publickey).", "odd": "two lines"}
    assert answer == {**dict.fromkeys(targets), **wrong}
    asked = (stub.parent / "ssh.asked").read_text().split()
    assert sorted(asked) == sorted(targets)
    args = (stub.parent / "ssh.args").read_text()
    assert "BatchMode=yes" in args and "KexAlgorithms=^curve25519-sha256" in args


def test_an_sshd_that_drops_newcomers_is_asked_again(stub: Path) -> None:
    assert verify(stub, ["busy"]) == {"busy": None}


def test_after_three_silent_ones_the_rest_is_not_waited_for(stub: Path) -> None:
    answer = verify(stub, ["dead1", "dead2", "dead3", "dead4", "dead5"], lanes=1)
    assert "timed out" in str(answer["dead3"]) and str(answer["dead4"]).startswith("not tried")
    assert verify(stub, ["dead1", "dead2", "good1", "dead3", "good2"], lanes=1)["good2"] is None


def test_a_busy_host_has_its_limit_too(stub: Path) -> None:
    """There the trial of `timeout` takes its time."""
    (stub.parent / "true").write_text("#!/bin/sh\nexec sleep 1.5\n")
    (stub.parent / "timeout").write_text('#!/bin/sh\necho "$@" >>"$0.args"\nexec /usr/bin/timeout "$@"\n')
    for name in ("true", "timeout"):
        (stub.parent / name).chmod(0o755)
    assert verify(stub, ["good"]) == {"good": None}
    assert "--foreground 25 ssh" in (stub.parent / "timeout.args").read_text()


def test_an_interrupt_leaves_no_ssh_behind(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.write_text('#!/bin/sh\n[ "$1" = -Q ] && exit 0\necho $$ >>"$0.pids"\nexec sleep 600\n')
    monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")
    pids = Path(f"{stub}.pids")
    runtime = Runtime(LocalTransport())

    def interrupt() -> None:
        until = time.monotonic() + 300
        while not (pids.exists() and len(pids.read_text().split()) == 3) and time.monotonic() < until:
            time.sleep(0.02)
        runtime.cancel.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    pairs = from_head(["a", "b", "c"], stub.parent, 5, runtime)
    thread.join()
    assert time.monotonic() - began < 200, "not the time that ssh itself takes"
    assert [pair.reason for pair in pairs] == ["no answer"] * 3
    until = time.monotonic() + 300
    while (left := [pid for pid in pids.read_text().split() if cmdline(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == []


def cmdline(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_what_is_not_answered_failed() -> None:
    assert parse("a", ["b"], b"") == [Pair("a", "b", "no answer")]
    assert parse("a", ["b", "c"], b"\nFLEET-SETUP-SSH\nFAIL ssh is not installed\n")[1].reason == "ssh is not installed"


@pytest.mark.parametrize("end", ["\r", "\x85", "\u2028", "\v", "\f"])
def test_what_a_host_says_speaks_for_no_other(end: str) -> None:
    output = f"\nFLEET-SETUP-SSH\nPAIR b 255 denied{end}PAIR c 0 \nPAIR c 255 denied\nPAIR d 255 x{end}PAIR c 0 \n"
    assert not any(pair.reason is None for pair in parse("a", ["b", "c", "d"], output.encode()))


def test_equal_reasons_are_folded() -> None:
    pairs = [Pair("a", f"gpu{i:02}", f"ssh: connect to host 10.0.0.{i} port 22: Connection refused") for i in (1, 2, 3)]
    error = as_error("a", [*pairs, Pair("a", "b", "exit status 1")], 9)
    assert error.message == "plain ssh from a fails to 4 of 9: gpu[01-03]: Connection refused; b: exit status 1"
    assert error.hint == "is that the port as seen from there?"
