"""A lab as the tests of this folder hold it in their hands."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.command_lines import wrong_hints

if TYPE_CHECKING:
    from typing_extensions import Self

FLEET = str(Path(sys.executable).with_name("fleet"))
# Ends when pytest does, killed or not (its stdin is our pipe), and takes the lab with it.
WATCHER = "import subprocess, sys; sys.stdin.read(); subprocess.run([sys.argv[1], 'lab', 'down', '-q'])"


@dataclass
class VirtualLab:
    """A lab with an instance name and a $HOME of its own; the head of every test that uses it."""

    instance: str
    home: Path
    env: dict[str, str]
    hosts: dict[str, dict[str, Any]]
    inventory: Path
    password_file: Path
    state_dir: Path
    program: str = FLEET
    enrolled: bool = False

    @property
    def names(self) -> list[str]:
        return list(self.hosts)

    @property
    def password(self) -> str:
        return self.password_file.read_text().strip()

    def address(self, host: str) -> str:
        return str(self.hosts[host]["address"])

    def fleet(
        self,
        *args: str,
        timeout: float = 300,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run `fleet ARGS` as this lab's head. check: fail the test, with all output, unless it exits 0."""
        done = subprocess.run(
            [self.program, *args],
            env={**self.env, **(env or {})},
            cwd=cwd or self.home,
            input=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )
        assert wrong_hints(done.stderr) == [], "a hint that cannot be pasted"
        if check and done.returncode != 0:
            pytest.fail(f"fleet {' '.join(args)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def typed(self, line: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A line as somebody types it in bash, where "fleet" is the one under test."""
        path = f"{Path(self.program).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", line],
            cwd=cwd,
            env={**self.env, "PATH": path, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def popen(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start `fleet ARGS` as this lab's head and leave it running; the test waits for it or kills it."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {**pipes, "cwd": self.home, **options, "env": {**self.env, **options.get("env", {})}}
        return subprocess.Popen([self.program, *args], **options)

    def inside(
        self, host: str, *argv: str, stdin: bytes = b"", check: bool = True, timeout: float = 300
    ) -> subprocess.CompletedProcess[bytes]:
        """Run argv in the host's namespaces, as root, without sshd or network."""
        enter = ["nsenter", "-t", str(self.hosts[host]["pid"]), "-a"]
        env = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8"}
        return subprocess.run([*enter, *argv], env=env, input=stdin, capture_output=True, timeout=timeout, check=check)

    def sh(self, host: str, line: str, check: bool = True) -> str:
        """Run a shell line in the host (see inside); its stdout, stripped."""
        return self.inside(host, "sh", "-c", line, check=check).stdout.decode(errors="replace").strip()

    def stop_sshd(self, host: str) -> None:
        """The port is refused from now on; sessions that are open stay. start_sshd brings it back."""
        self.sh(host, "kill $(cat /run/sshd.pid); while [ -e /run/sshd.pid ]; do sleep 0.02; done")

    def start_sshd(self, host: str) -> None:
        self.sh(host, "/usr/sbin/sshd -E /var/log/sshd.log; while [ ! -e /run/sshd.pid ]; do sleep 0.02; done")

    def swap_host_key(self, host: str) -> None:
        """The host answers with another key from now on, as a reinstalled or an impostor's would."""
        self.stop_sshd(host)
        self.sh(host, "cd /etc/ssh && rm ssh_host_* && ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key")
        self.start_sshd(host)

    def enrol(self) -> VirtualLab:
        """`fleet setup-ssh` over the whole lab, once: what most verbs need before they are tested."""
        if not self.enrolled:
            words = ("setup-ssh", "--tofu", "--password-file", str(self.password_file))
            self.fleet("-i", "lab", "--connect-timeout", "60", *words, check=True)
            self.enrolled = True
        return self

    def train_with(self, python: str) -> None:
        """From now on `-i lab` has this training interpreter on all hosts."""
        self.inventory.write_text(re.sub("python: [^,}]+", f"python: {python}", self.inventory.read_text()))

    def first(self, count: int) -> Self:
        """Returns a view of the lab with only its first hosts; `-i lab` still means all of them."""
        return replace(self, hosts=dict(list(self.hosts.items())[:count]))

    @contextlib.contextmanager
    def narrowed(self, count: int) -> Iterator[Self]:
        """Returns such a view, and has `-i lab` mean these hosts alone meanwhile."""
        view, text = self.first(count), self.inventory.read_text()
        others = tuple(f"  {name}:" for name in self.names[count:])
        self.inventory.write_text("".join(line for line in text.splitlines(True) if not line.startswith(others)))
        try:
            yield view
        finally:
            self.inventory.write_text(text)

    def refresh(self) -> None:
        """Read the hosts again, after `up` or `kill` changed their first processes."""
        self.hosts = json.loads(self.fleet("lab", "status", "--json", check=True).stdout)["hosts"]


LabFactory = Callable[..., VirtualLab]


def head_env(home: Path, instance: str) -> dict[str, str]:
    """The environment of a head that shares nothing with the one pytest runs on; its Python is nobody's, either
    (PYTHONUNBUFFERED hides what a full pipe does)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FLEET_", "SSH_", "PYTEST", "PYTHON"))}
    return {**env, "HOME": str(home), "FLEET_LAB": instance, "LANG": "C.UTF-8"}


def labs(
    tmp_path_factory: pytest.TempPathFactory, prefix: str = "t", program: str = FLEET, python: str | None = None
) -> Iterator[LabFactory]:
    """What a fixture yields from: make(count, *options of `lab up`), a new lab with its own $HOME, brought up by
    `program` and taken down when the session ends. python: the training interpreter, instead of fleet's own."""
    watchers: list[subprocess.Popen[bytes]] = []

    def make(count: int = 4, *options: str) -> VirtualLab:
        home = tmp_path_factory.mktemp("home")
        instance = f"{prefix}{os.getpid()}{'abcdefghijklmnopqrstuvwxyz'[len(watchers)]}"
        watchers.append(
            subprocess.Popen(
                [sys.executable, "-c", WATCHER, program],
                stdin=subprocess.PIPE,
                env=head_env(home, instance),
                start_new_session=True,
            )
        )
        lab = bring_up(home, instance, [str(count), *options], program)
        if python:
            lab.train_with(python)
        return lab

    yield make
    for watcher in watchers:
        watcher.communicate(timeout=300)


def bring_up(home: Path, instance: str, args: Sequence[str], program: str = FLEET) -> VirtualLab:
    env = head_env(home, instance)
    done = subprocess.run([program, "lab", "up", "--json", *args], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"no lab: {done.stderr}", pytrace=False)
    said = json.loads(done.stdout)
    inventory, password, state = (Path(said[key]) for key in ("inventory", "password_file", "state_dir"))
    return VirtualLab(instance, home, env, said["hosts"], inventory, password, state, program)
