"""A real sshd on 127.0.0.x with its own keys, config and log, and listeners that misbehave; for transport tests."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fleet.model import Host
from tests.free_port import free_port


def make_key(file: Path, kind: str = "ed25519") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    bits = ["-b", "2048"] if kind == "rsa" else []  # what takes a second to make is no safer here
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *bits, "-N", "", "-f", str(file)], check=True)


class Sshd:
    """One sshd; `log()` is what it wrote, at level VERBOSE."""

    def __init__(
        self,
        folder: Path,
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        port: int | None = None,
        key_types: Sequence[str] = ("ed25519",),
        settings: Sequence[str] = (),
        keys_of: Sshd | None = None,
    ) -> None:
        self.folder, self.addresses, self.port = folder, tuple(addresses), port or free_port(addresses[0])
        folder.mkdir(parents=True)
        for kind in key_types:
            if keys_of is not None:
                shutil.copy(keys_of.folder / f"host_{kind}", folder)
                shutil.copy(keys_of.folder / f"host_{kind}.pub", folder)
            else:
                make_key(folder / f"host_{kind}", kind)
        lines = [f"ListenAddress {address}:{self.port}" for address in addresses]
        lines += [f"HostKey {folder}/host_{kind}" for kind in key_types]
        lines += [
            "UsePAM no",
            "PidFile none",
            "PermitRootLogin yes",
            "StrictModes no",
            "LogLevel VERBOSE",
            # as in the lab: it takes 150 ms
            "KexAlgorithms -sntrup761*",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            *settings,
            # keeps bash from reading a ~/.bashrc that may take its time
            "SetEnv SHLVL=3",
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        (folder / "authorized_keys").touch()
        Path("/run/sshd").mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        binary = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        assert binary, "these tests need an sshd (Debian: openssh-server)"
        with (self.folder / "log").open("ab") as log:
            before = self.log().count("Server listening")
            self.process = subprocess.Popen(
                [binary, "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 300
        while self.log().count("Server listening") < before + len(self.addresses):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def public_key(self, kind: str = "ed25519") -> str:
        return " ".join((self.folder / f"host_{kind}.pub").read_text().split()[:2])

    def allow(self, public: Path) -> None:
        with (self.folder / "authorized_keys").open("ab") as file:
            file.write(public.read_bytes())

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def heal(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def children(self) -> list[int]:
        """The pids of the processes that serve connections."""
        return [int(p) for p in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            for pid in [*self.children(), self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(300)

    def host(self, name: str = "node", address: str | None = None, **fields: object) -> Host:
        return Host(name, address or self.addresses[0], port=self.port, **fields)  # type: ignore[arg-type]


class Head:
    """A home of its own with a key and a known_hosts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ssh = home / ".ssh"
        self.ssh.mkdir(parents=True)
        make_key(self.ssh / "id_ed25519")
        self.public = self.ssh / "id_ed25519.pub"
        self.known_hosts = self.ssh / "known_hosts"

    def knows(self, sshd: Sshd, *kinds: str) -> None:
        with self.known_hosts.open("a") as file:
            for address in sshd.addresses:
                for kind in kinds or ("ed25519",):
                    file.write(f"[{address}]:{sshd.port} {sshd.public_key(kind)}\n")

    def trusted_by(self, sshd: Sshd) -> None:
        self.knows(sshd)
        sshd.allow(self.public)


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None] | None = None) -> Iterator[int]:
    """The port of a TCP listener that hands connections to `serve`, or says nothing."""
    sock = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = sock.accept()
                held.append(peer)
                if serve:
                    with contextlib.suppress(OSError):
                        serve(peer)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield sock.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        for peer in held:
            peer.close()


@contextlib.contextmanager
def running_agent(path: Path) -> Iterator[None]:
    """A real ssh-agent that listens at `path`. Its first line comes after listen(), its socket before."""
    with subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE) as agent:
        assert agent.stdout
        try:
            assert agent.stdout.readline()
            yield
        finally:
            agent.terminate()


@contextlib.contextmanager
def hung_agent(path: Path, how: str, public: Path | None = None) -> Iterator[None]:
    """Something at `path` that "accepts" and says nothing, that is "full" and accepts nobody, or that "lists" the one
    key `public` and never signs."""
    with socket.socket(socket.AF_UNIX) as sock, contextlib.ExitStack() as held:
        sock.bind(str(path))
        sock.listen(0 if how == "full" else 100)
        if how == "full":
            for _ in range(3):
                other = held.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    other.connect(str(path))

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer = held.enter_context(sock.accept()[0])
                    if how == "lists" and public is not None:
                        assert peer.recv(5) == b"\0\0\0\1\x0b"
                        blob = base64.b64decode(public.read_bytes().split()[1])
                        body = b"\x0c" + struct.pack(">II", 1, len(blob)) + blob + struct.pack(">I", 2) + b"me"
                        peer.sendall(struct.pack(">I", len(body)) + body)

        if how != "full":
            threading.Thread(target=serve, daemon=True).start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
