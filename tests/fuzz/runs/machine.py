"""Machines out of namespaces, as forks of one python: [python, machine.py, modules...]. It makes one for each request
over the socket that is its stdin: {"name", "boot": a file that is its boot id, "clock", "listen": a path, or null for a
head, "home", "said": where what programs say on stderr goes} and three descriptors, of the mounts and the network that
it is to see and of a socket to its first process (Machine in world.py).

A machine has processes, mounts and a host name of its own. On a node each connection to its socket becomes a
program of fleet's, as sshd would start it: by the bootstrap, from its stdin. On a head the first process starts what
is typed, as forks that have imported fleet. All of it ends with its first process. The standard library only.
"""

import array
import base64
import collections
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import importlib
import json
import marshal
import operator
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import zlib
from typing import Any

# what programs of nodes import, so that they need not
KNOWN = [base64, collections, errno, fcntl, hashlib, marshal, operator, re, shutil, struct, subprocess, tempfile]
KNOWN += [threading, zlib]
NEWNS, NEWUTS, NEWPID, NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000
REC, PRIVATE, BIND = 0x4000, 0x40000, 0x1000
PDEATHSIG = 1
HELLO = b"+"  # of a node that lets in
LIBC = ctypes.CDLL(None, use_errno=True)
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
PYTHON = "/usr/bin/python3"  # of nodes


def call(name: str, *args: Any) -> None:
    if getattr(LIBC, name)(*args):
        raise OSError(ctypes.get_errno(), f"{name}{args}: {os.strerror(ctypes.get_errno())}")


def mount(what: str, where: str, kind: str, flags: int = 0, options: str = "") -> None:
    call("mount", what.encode(), where.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def words(fd: int) -> list[str]:
    return os.read(fd, 1 << 16).decode("utf-8", "replace").split("\0")


def look() -> list[dict[str, Any]]:
    """The processes of this machine, but for its first one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            texts = {}
            try:
                for file in ("stat", "cmdline", "environ"):
                    with open(f"/proc/{name}/{file}", "rb") as f:
                        texts[file] = f.read().decode("utf-8", "replace")
            except OSError:
                continue
            comm, _, rest = texts["stat"].partition("(")[2].rpartition(")")
            fields = rest.split()
            env = dict(pair.partition("=")[::2] for pair in texts["environ"].split("\0") if "=" in pair)
            argv = texts["cmdline"].rstrip("\0").split("\0")
            who = {"pid": int(name), "ppid": int(fields[1]), "state": fields[0], "comm": comm, "argv": argv}
            found.append({**who, "run": env.get("FLEET_RUN_ID"), "rank": env.get("RANK")})
    return found


class First:
    """The first process of a machine."""

    def __init__(self, asked: dict[str, Any], control: socket.socket) -> None:
        self.asked, self.control = asked, control
        self.listener: socket.socket | None = None
        self.frozen = False
        self.ours: set[int] = set()  # what was typed

    def start(self) -> None:
        asked = self.asked
        os.setsid()
        LIBC.unshare(NEWNS | NEWUTS)
        mount("none", "/", "", REC | PRIVATE)
        mount("proc", "/proc", "proc")
        mount(asked["boot"], BOOT_ID, "", BIND)
        call("sethostname", asked["name"].encode(), len(asked["name"]))
        for name in ("TMUX", "SSH_CONNECTION", "PYTHONDONTWRITEBYTECODE"):
            os.environ.pop(name, None)
        os.environ.update(HOME=asked["home"], USER="root", LOGNAME="root", **asked.get("env", {}))
        if asked["clock"]:
            os.environ["FUZZ_CLOCK"] = asked["clock"]
            with contextlib.suppress(AttributeError):
                LIBC.fuzz_clock(asked["clock"].encode())
        os.umask(0o022)
        os.chdir(asked["home"])
        if asked["listen"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(asked["listen"])
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(asked["listen"])
            self.listener.listen(64)
        self.live()

    def live(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.control.send(b'{"up": true}')
        while True:
            watched: list[Any] = [self.control, reader]
            if self.listener is not None and not self.frozen:
                watched.append(self.listener)
            for ready in select.select(watched, [], [])[0]:
                if ready is self.control:
                    self.obey()
                elif ready is self.listener:
                    self.let_in()
                else:
                    os.read(reader, 4096)
                    self.reap()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.ours:
                self.ours.discard(pid)
                self.control.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())

    def obey(self) -> None:
        data, ancillary, _flags, _address = self.control.recvmsg(1 << 16, socket.CMSG_SPACE(16))
        if not data:
            os._exit(0)
        fds = array.array("i")
        for _level, _kind, sent in ancillary:
            fds.frombytes(sent[: len(sent) - len(sent) % fds.itemsize])
        asked = json.loads(data)
        answer: dict[str, Any] = {"answer": None}
        if asked["op"] == "type":
            answer = {"answer": self.type(asked, list(fds))}
        elif asked["op"] == "signal":
            try:
                os.kill(asked["pid"], asked["signal"])
                answer = {"answer": True}
            except ProcessLookupError:
                answer = {"answer": False}
        elif asked["op"] == "freeze":
            self.frozen = True
            for _ in range(50):  # one that forks just now has a child that is not stopped
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGSTOP)
                if all(each["state"] in "TZX" for each in look()):
                    break
                time.sleep(0.01)
        elif asked["op"] == "thaw":
            self.frozen = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGCONT)
        elif asked["op"] == "look":
            answer = {"answer": look()}
        for fd in fds:
            os.close(fd)
        self.control.sendmsg([json.dumps(answer).encode()])

    def type(self, asked: dict[str, Any], fds: list[int]) -> int:
        """What a user types on a head: {"argv", "cwd", "env", "terminal"}."""
        pid = os.fork()
        if not pid:
            try:
                become(fds)
                if asked["terminal"]:
                    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                os.environ.update(asked.get("env", {}))
                os.chdir(asked["cwd"])
                sys.argv = ["fleet", *asked["argv"]]
                sys.modules["fleet.cli.main"].main()
            except SystemExit as ended:
                os._exit(ended.code if isinstance(ended.code, int) else 1)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        self.ours.add(pid)
        return pid

    def let_in(self) -> None:
        """A program of fleet's, as sshd starts it: by the bootstrap, which comes over its stdin."""
        assert self.listener is not None
        peer, _ = self.listener.accept()
        if not os.fork():
            try:
                said = os.open(self.asked["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                become([peer.fileno(), peer.fileno(), said])
                sys.argv, sys.executable = ["-c"], PYTHON
                os.write(1, HELLO)
                exec(self.asked["bootstrap"], {"__name__": "__main__"})
                sys.stdout.flush()
            except SystemExit as ended:
                os._exit(ended.code if isinstance(ended.code, int) else 1)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        peer.close()


def become(fds: list[int]) -> None:
    """A session of its own, with these as its standard streams, and nothing of the first process."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]
    for number, fd in enumerate(kept):
        os.dup2(fd, number)
    os.closerange(3, 256)
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as python has it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))


def main() -> None:
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sock = socket.socket(fileno=0)
    pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, ancillary, _flags, _address = sock.recvmsg(1 << 16, socket.CMSG_SPACE(16))
        if not data:
            return
        fds = array.array("i")
        for _level, _kind, sent in ancillary:
            fds.frombytes(sent[: len(sent) - len(sent) % fds.itemsize])
        call("setns", pids, NEWPID)
        call("unshare", NEWPID)
        pid = os.fork()
        if not pid:
            try:
                LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sock.close()
                for fd, kind in zip(fds, (NEWNS, NEWNET), strict=False):
                    call("setns", fd, kind)
                First(json.loads(data), socket.socket(fileno=fds[2])).start()
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)
        sock.send(json.dumps({"pid": pid}).encode())


if __name__ == "__main__":
    main()
