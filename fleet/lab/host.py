"""Becomes the lab's switch and hosts, as a program that processes.py starts. It needs the standard library only.

It forks one child per machine, which enters namespaces of its own. So 64 hosts share the interpreter's memory. stdin
has a line of JSON, the spec, then a byte for each machine when its cable is plugged in. If stdin ends before that,
`fleet lab up` is gone, and the machines end. It reports on stdout, one packet of JSON each: {"name", "pid"} when the
namespaces exist, then {"name", "ready"} or {"name", "error"}.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from fleet.lab.root import call, libc, make_root

PR_SET_NAME = 15
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
SSHD_CONFIG = """\
# An OpenSSH server (MaxStartups, MaxSessions as compiled in) that takes root's password.
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin yes
PasswordAuthentication yes
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
PidFile /run/sshd.pid
AcceptEnv LANG LC_*
# this key exchange takes 150 ms for every connection when both ends are on one machine
KexAlgorithms -sntrup761*
Subsystem sftp internal-sftp
"""
# The password is random, so it is hashed in few rounds, as 64 hosts check it. The files of the head's sshd are removed.
ACCOUNTS = """
mkdir -p /var/log /etc/ssh
chpasswd --crypt-method=SHA512 --sha-rounds=1000
rm -rf /etc/ssh/ssh_host_* /etc/ssh/sshd_config* /etc/ssh/ssh_known_hosts*
"""
MODES = {"/etc/machine-id": 0o444, "/etc/ssh/ssh_host_ed25519_key": 0o600}


def furnish(spec: dict[str, Any], host: dict[str, Any], keys: dict[str, bytes]) -> None:
    """Sets the host's name, accounts, host keys and sshd configuration. Runs inside its root."""
    socket.sethostname(host["name"])
    password = f"root:{spec['password']}".encode()
    subprocess.run(["sh", "-ec", ACCOUNTS], input=password, env=ENVIRONMENT, check=True, capture_output=True)
    files = {
        "/etc/hostname": host["name"] + "\n",
        "/etc/hosts": spec["etc_hosts"],
        "/etc/resolv.conf": "# no name server in the lab: /etc/hosts names every host\n",
        "/etc/machine-id": os.urandom(16).hex() + "\n",
        "/etc/ssh/sshd_config": SSHD_CONFIG,
        **{f"/etc/ssh/{file}": content.decode() for file, content in keys.items()},
    }
    for path, text in files.items():
        Path(path).unlink(missing_ok=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODES.get(path, 0o644))
        with open(opened, "w", encoding="utf-8") as out:
            out.write(text)


def plug_in(spec: dict[str, Any], host: dict[str, Any]) -> None:
    """Configures the network card, which `fleet lab up` has put into this namespace."""
    address = f"link set lo up\naddr add {host['address']}/{spec['prefix']} brd + dev eth0\nlink set eth0 up\n"
    text = address + spec["neighbours"]
    subprocess.run([spec["ip"], "-batch", "-"], input=text.encode(), check=True, capture_output=True)


def start_sshd(spec: dict[str, Any]) -> None:
    """Starts sshd. Returns when it listens: it writes its pid file after it has bound its port."""
    server = subprocess.Popen([spec["sshd"], "-D", "-E", "/var/log/sshd.log"], env=ENVIRONMENT, start_new_session=True)
    while not os.path.exists("/run/sshd.pid"):
        if server.poll() is not None:
            log = Path("/var/log/sshd.log")
            output = log.read_text(errors="replace").strip() if log.exists() else ""
            raise OSError(f"sshd ended with {server.returncode}: {output}")
        time.sleep(0.01)
    server.returncode = 0  # init reaps it like any orphan; Popen must not wait for it


def init_forever() -> NoReturn:
    """Reaps orphans for ever. Outlives sshd, so that a test can stop sshd or change its keys."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # after the start of sshd, which would inherit it
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


def ordinary_signals() -> None:
    """Resets signals, as `fleet lab up` may have been started with some ignored (as a shell's background job)."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def be_host(spec: dict[str, Any], host: dict[str, Any]) -> NoReturn:
    try:
        ordinary_signals()
        wait_for_go()
        keys = {file.name: file.read_bytes() for file in Path(host["keys"]).iterdir()}
        make_root(spec)
        furnish(spec, host, keys)
        plug_in(spec, host)
        start_sshd(spec)
    except subprocess.CalledProcessError as e:
        report(name=host["name"], error=f"{' '.join(e.cmd[:2])}: {e.stderr.decode(errors='replace').strip()}")
        os._exit(1)
    except Exception as e:  # every failure is reported by the host's name, none as a traceback
        report(name=host["name"], error=getattr(e, "strerror", None) or str(e) or type(e).__name__)
        os._exit(1)
    report(name=host["name"], ready=True)
    silence(1, 2)
    init_forever()


def be_switch(spec: dict[str, Any]) -> NoReturn:
    """Keeps the network namespace open that has the bridge."""
    wait_for_go()
    silence(1, 2)
    init_forever()


def wait_for_go() -> None:
    if os.read(0, 1) != b"1":
        os._exit(1)
    silence(0)


def report(**message: Any) -> None:
    message = {key: value[:1000] if isinstance(value, str) else value for key, value in message.items()}
    os.write(1, json.dumps(message).encode())


def silence(*fds: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def spawn(name: str, namespaces: int, body: Any) -> None:
    """Forks into new namespaces. The child forks once more after unshare, as only a new process is pid 1 there."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()  # a Ctrl-C meant for `fleet lab up` is not meant for the hosts
        call("unshare", libc.unshare(namespaces))
        pid = os.fork()
    except OSError as e:
        report(name=name, error=e.strerror)
        os._exit(1)
    if pid:
        report(name=name, pid=pid)
        os._exit(0)
    try:
        libc.prctl(PR_SET_NAME, b"lab-" + name.encode()[:11], 0, 0, 0)
        body()
    finally:
        os._exit(1)


def main() -> None:
    spec = json.loads(sys.stdin.buffer.readline())
    os.umask(0o022)
    if spec["switch"]:
        spawn("switch", NEWNET, lambda: be_switch(spec))
    for host in spec["hosts"]:
        every = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
        spawn(host["name"], every, lambda host=host: be_host(spec, host))
