"""Standard input of exec over real sshd: all of it to every host, and only what was given to fleet itself."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab

OVER = ["ssh", "openssh", pytest.param("pdsh", marks=pytest.mark.slow)]


def bash(lab: VirtualLab, script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A script as a user has it, with this lab's fleet. Its stderr comes without what a slow machine adds to it."""
    path = f"{Path(lab.program).parent}:{os.environ['PATH']}"
    env = {**lab.env, "PATH": path, "FLEET_INVENTORY": str(lab.inventory)}
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "cwd": lab.home, "env": env, "timeout": 300}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, **{**given, **options})
    done.stderr = re.sub(r"^waiting for .* \.\.\. \d+ s\n", "", done.stderr or "", flags=re.MULTILINE)
    return done


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def everywhere(lab: VirtualLab, line: str) -> list[str]:
    return [lab.sh(name, line, check=False) for name in lab.names]


@pytest.mark.parametrize("transport", OVER)
def test_what_is_piped_in_reaches_every_host(ready_lab: VirtualLab, transport: str) -> None:
    done = bash(ready_lab, f"echo hello | fleet --transport {transport} exec -- cat")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.endswith("(3) ---\nhello\n")


@pytest.mark.parametrize("transport", OVER)
def test_8_mb_arrive_byte_for_byte(ready_lab: VirtualLab, tmp_path: Path, transport: str) -> None:
    data = random.Random(7).randbytes(8_000_000)
    (tmp_path / "f").write_bytes(data)
    done = bash(
        ready_lab, f"cat {tmp_path}/f | fleet --transport {transport} exec --shell 'cat > big; sha256sum < big; rm big'"
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines()[1:] == [f"{hashlib.sha256(data).hexdigest()}  -"]


def test_a_script_a_here_document_and_nothing(ready_lab: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text("echo one\nread -r x <<< two; echo $x; cat\nthree")
    script = f"""
        fleet exec -- bash < {tmp_path}/s.sh
        fleet exec --shell 'cat; echo end' <<< here
        for how in '<&-' '</dev/null' '< <(:)' '--stdin </dev/null'; do eval "fleet exec $how -- cat"; echo $?; done
        fleet exec -n --shell 'cat; echo empty' <<< here
    """
    done = bash(ready_lab, script)
    shown = [line for line in done.stdout.splitlines() if not line.startswith("---")]
    assert shown == ["one", "two", "three", "here", "end", *["0"] * 4, "empty"], done.stderr
    assert not done.stderr


def test_a_loop_over_a_file_of_hosts_visits_each(ready_lab: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("".join(f"{name}\n" for name in ready_lab.names))
    loop = "while read -r h; do fleet exec {} -w $h -- hostname; done < {}/hosts"
    done = bash(ready_lab, loop.format("", tmp_path))
    assert [line for line in done.stdout.splitlines() if "---" not in line] == ready_lab.names, done.stderr
    # the last time there is nothing left to send
    assert done.stderr.count("--stdin") == len(ready_lab.names) - 1
    quiet = bash(ready_lab, loop.format("-n", tmp_path))
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")
    sent = bash(ready_lab, f"(fleet exec --stdin -- cat) < {tmp_path}/hosts")
    assert sent.stdout.splitlines()[1:] == ready_lab.names and not sent.stderr


CALLS = {
    "timeout": "timeout 60 fleet exec -- bash < s.sh",
    "flock": "flock lock fleet exec -- bash < s.sh",
    "a subshell": "(fleet exec -- bash; exit $?) < s.sh",
    "make": "make -s -f makefile < s.sh",
    "a script": "sh call.sh < s.sh",
    "subprocess": f"{sys.executable} call.py < s.sh",
    "quiet": "(fleet -q exec -- bash; exit $?) < s.sh",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_file_that_is_there_and_not_sent_is_an_error(ready_lab: VirtualLab, tmp_path: Path, call: str) -> None:
    (tmp_path / "s.sh").write_text("touch /root/ran\n")
    (tmp_path / "makefile").write_text("all:\n\tfleet exec -- bash\n")
    (tmp_path / "call.sh").write_text("fleet exec -- bash\nexit $?\n")
    (tmp_path / "call.py").write_text("import subprocess as s; exit(s.run(['fleet', 'exec', '--', 'bash']).returncode)")
    done = bash(ready_lab, call, cwd=tmp_path)
    assert done.returncode == 2 and "--stdin sends it, -n leaves it" in done.stderr, (done.stdout, done.stderr)
    assert everywhere(ready_lab, "ls /root/ran") == [""] * 3
    for option, ran in (("-n", ""), ("--stdin", "/root/ran")):
        done = bash(ready_lab, f"timeout 60 fleet exec {option} -- bash < {tmp_path}/s.sh")
        assert (done.returncode, done.stderr) == (0, "") and everywhere(ready_lab, "ls /root/ran") == [ran] * 3
    everywhere(ready_lab, "rm /root/ran")


def test_what_waits_and_is_not_sent_is_named(ready_lab: VirtualLab, tmp_path: Path) -> None:
    """A pipe of the caller's, also with -q, and in the document; of an empty file there is nothing to say."""
    (tmp_path / "empty").touch()
    done = bash(ready_lab, "echo x | (fleet -q exec -- cat; exit $?)")
    assert done.returncode == 0 and "what waits on standard input is not sent" in done.stderr
    done = bash(ready_lab, "echo x | (fleet --json exec -- cat; exit $?)")
    assert json.loads(done.stdout)["stdin"] == "not sent"
    done = bash(ready_lab, f"(fleet --json exec -- cat; exit $?) < {tmp_path}/empty")
    assert (done.returncode, done.stderr) == (0, "") and "stdin" not in json.loads(done.stdout)


@pytest.mark.parametrize("transport", OVER)
def test_an_input_without_end_ends_with_the_commands(ready_lab: VirtualLab, transport: str) -> None:
    done = bash(
        ready_lab,
        f"fleet --transport {transport} exec -- head -1 < <(exec yes)\n"
        f"fleet --transport {transport} exec --shell 'exec <&-; sleep 1; exit 3' < <(exec yes)\n"
        "exec 3< <(exec sleep 900 2>/dev/null); endless=$!\n"
        f"fleet --transport {transport} exec -- sleep 1 <&3\necho $?; kill $endless",
    )
    assert done.stdout.splitlines()[1:] == ["y", "0"], (done.stdout, done.stderr)
    assert done.stderr.count("exit status 3") == 1


def test_a_command_that_does_not_read_holds_the_others_back(ready_lab: VirtualLab) -> None:
    slow, size, written = ready_lab.names[1], 16_000_000, [0]
    process = subprocess.Popen(
        [ready_lab.program, "-i", "lab", "exec", "--shell", f"{waits_on(slow)}; wc -c > got"],
        env=ready_lab.env,
        cwd=ready_lab.home,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin

    def feed(pipe: IO[bytes]) -> None:
        for _ in range(size // 100_000):
            pipe.write(b"x" * 100_000)
            written[0] += 100_000
        pipe.close()

    feeder = threading.Thread(target=feed, args=(process.stdin,))
    feeder.start()
    seen = [-1, 0]
    while seen[-1] == 0 or seen[-1] != seen[-2]:
        time.sleep(1)
        seen.append(written[0])
    peak = int(Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
    ready_lab.sh(slow, "touch /run/go")
    feeder.join()
    assert process.wait(300) == 0
    ready_lab.sh(slow, "rm /run/go")
    assert everywhere(ready_lab, "cat /root/got") == [str(size)] * 3
    assert seen[-1] < size // 2, "it was taken before a host had read any of it"
    assert peak < 200_000, f"{peak} KiB"


def waits_on(host: str) -> str:
    """A shell's line that on this host ends when there is a /run/go."""
    return f"[ $(hostname) != {host} ] || until [ -e /run/go ]; do sleep 0.1; done"


def test_a_host_that_freezes_is_dropped_and_the_others_get_all(breakable: BreakableLab) -> None:
    lab = breakable.enrol()
    victim = lab.names[1]
    process = lab.popen("-i", "lab", "exec", "--shell", "head -1 > begun; wc -c", stdin=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()
    wait_for(lambda: everywhere(lab, "wc -l < /root/begun") == ["1"] * 4)
    lab.fleet("lab", "freeze", victim, check=True)
    try:
        out, err = process.communicate(b"x" * 8_000_000, timeout=300)
    finally:
        lab.fleet("lab", "heal", victim, check=True)
    assert process.returncode == 122 and f"error: host {victim}: ".encode() in err, err
    assert b"silent for 15 s" in err or b"the connection was lost" in err  # whichever is seen first
    assert out.splitlines()[1:] == [b"8000000"], out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_script_that_breaks_off_is_not_run_to_its_end(ready_lab: VirtualLab, how: signal.Signals) -> None:
    """Its last line may be half of one."""
    for name in ready_lab.names:
        ready_lab.sh(name, "rm -f /root/first /root/last")
    process = ready_lab.popen("-i", "lab", "exec", "--", "sh", stdin=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(b"touch first\ntrap '' TERM\ntouch last")
    process.stdin.flush()
    wait_for(lambda: everywhere(ready_lab, "ls /root/first") == ["/root/first"] * 3)
    process.send_signal(how)
    assert process.wait(100) == (130 if how == signal.SIGINT else -9)
    process.communicate()
    wait_for(lambda: not any(everywhere(ready_lab, "ps -eo args | grep -x 's[h]'; pgrep -x cat")))
    assert everywhere(ready_lab, "ls /root/last") == [""] * 3


def test_a_timeout_ends_it_while_input_flows(ready_lab: VirtualLab) -> None:
    done = bash(ready_lab, "fleet exec --timeout 2 --shell 'cat > /dev/null' < <(exec yes)")
    assert done.returncode == 124 and "still running after 2 s; ended there" in done.stderr
    wait_for(lambda: not any(everywhere(ready_lab, "pgrep -x cat")))


def test_input_is_nowhere_but_where_it_goes(ready_lab: VirtualLab) -> None:
    secret = "s3cr3t-" + "q" * 20
    script = f"fleet -v --json exec --shell 'read -r x; ps -eo args' <<< {secret[:7]}{secret[7:]}"
    done = bash(ready_lab, script)
    assert done.returncode == 0 and "ps -eo args" in done.stdout
    assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["exec", "exec --no-fold"])
def test_output_that_nobody_reads_ends_it(ready_lab: VirtualLab, verb: str) -> None:
    line = f"fleet {verb} --shell 'while sleep 0.3; do echo tick; done' | head -2; echo ${{PIPESTATUS[0]}}"
    if verb == "exec":  # shown when all have ended
        line = line.replace("while sleep 0.3; do echo tick; done", "seq 1 100000")
    done = bash(ready_lab, line)
    assert done.stdout.splitlines()[-1] == "141" and not done.stderr, (done.stdout, done.stderr)
    wait_for(lambda: not any(everywhere(ready_lab, "pgrep -f 'sleep 0[.]3'")))
