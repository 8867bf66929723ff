"""`fleet ssh`, `fleet forward`: one host's shell and ports, over the verified connection."""

from __future__ import annotations

import signal
import socket
import subprocess

from tests.lab.test_launch import until
from tests.lab.virtual_lab import VirtualLab


def answers(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as link:
            link.settimeout(60)
            return link.recv(8)
    except OSError:
        return b""


def test_a_shell_and_a_port_of_one_host(lab: VirtualLab) -> None:
    lab.enrol()
    host, other = lab.names[1], lab.names[2]
    done = lab.fleet("-i", "lab", "ssh", host, "--", "sh -c 'hostname; cat; exit 7'", stdin="through\n")
    assert (done.returncode, done.stdout) == (7, f"{host}\nthrough\n"), done.stderr
    at_terminal = f"fleet -i lab ssh {host} 2>&1"
    typed = "tty && hostname; exit 3\n"
    run = subprocess.run(
        ["script", "-qec", at_terminal.replace("fleet", lab.program, 1), "/dev/null"],
        env=lab.env, cwd=lab.home, input=typed, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 3 and "/dev/pts/" in run.stdout and host in run.stdout, run.stdout

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = lab.fleet("-i", "lab", "forward", host, f"22:{port}")
        assert refused.returncode == 2 and f"fleet -i lab forward {host} 22:" in refused.stderr, refused.stderr
    process = lab.popen("-i", "lab", "forward", host, f"22:{port}")
    until(lambda: answers(port) == b"SSH-2.0-")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=300) and process.returncode == 0
    assert answers(port) == b""

    lab.swap_host_key(other)
    try:
        done = lab.fleet("-i", "lab", "ssh", other, "true")
        assert done.returncode == 122 and "host key" in done.stderr, done.stderr
    finally:
        lab.enrolled = False
        lab.fleet("-i", "lab", "setup-ssh", "--replace-key", other, "--tofu", "--password-file", str(lab.password_file))
