"""Defines the requests of the verbs that look at hosts or change them: exec, check, kill-port, setup-ssh, build."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from fleet.errors import UsageError
from fleet.requests.request import HINT, MOMENT, OptionError, Request, number, option, within
from fleet.requests.sync import IMPORT_SECONDS
from fleet.requests.variables import check_variable


@dataclass(frozen=True, kw_only=True)
class Exec(Request):
    """Requests to run exactly `argv` on every host, or the line `shell` in the node's shell. Times are seconds.

    timeout: after which the command is ended, None: never. grace: between SIGTERM and SIGKILL. keep: keep the outputs;
    False: only events have them. env_of: "python" for the environment of each host's training interpreter. stdin:
    bytes, or a file open for reading, for the command on every host; None: no input."""

    argv: Sequence[str] = field(default=(), kw_only=False, metadata={HINT: "for a line: shell=..."})
    shell: str | None = option(None, "A line for the node's shell, instead of an argv.", metavar="LINE")
    timeout: float | None = option(
        None, "End the command on a host after S seconds.", metavar="S", limits=within(MOMENT)
    )
    grace: float = number(2.0, 0)
    keep: bool = True
    env_of: Literal["python"] | None = option(
        None, "Run it in the environment of the host's training interpreter: `python` of the inventory."
    )
    outdir: str | os.PathLike[str] | None = option(
        None, "Write each host's output to DIR/HOST.out and DIR/HOST.err, too.", metavar="DIR"
    )
    stdin: bytes | BinaryIO | None = field(default=None, repr=False)

    def check(self) -> None:
        example = "fleet exec -- nvidia-smi -L"
        if (self.shell is None) == (not self.argv):
            raise UsageError("give either a command after '--' or --shell LINE", hint=example)
        if self.argv and not self.argv[0] or self.shell is not None and not self.shell.strip():
            raise UsageError("the command is empty", hint=example)
        if isinstance(self.stdin, str):
            raise OptionError("stdin", "is a text: must be bytes, or a file of them")


@dataclass(frozen=True, kw_only=True)
class Check(Request):
    """Requests to compare the hosts' environments. timeout: seconds for each probe step; all of them run at once.
    engine: what is to run there. network: also measure each pair of hosts. bench: also measure how fast idle GPUs
    are."""

    timeout: float = option(
        20.0, "Seconds until a step on a node counts as hanging.", metavar="S", limits=within(0.1, 600)
    )
    engine: str = option("torchrun", "The engine to check for: what it needs must be there.")
    network: bool = option(False, "Measure bandwidth and latency of every pair of hosts, too.")
    bench: bool = option(False, "Measure how fast each idle GPU computes and copies, too, or a host's processors.")


@dataclass(frozen=True, kw_only=True)
class KillPort(Request):
    """Requests to end the processes that listen on these ports, and no others. force: also other users' processes.
    grace: seconds between SIGTERM and SIGKILL. runs: ids or names of live runs whose processes may be ended, too.
    agree: takes the KillPlan, and returns False to refuse it."""

    ports: Collection[int] = field(kw_only=False, metadata=within(1, 65535))
    force: bool = option(False, "End other users' processes too, where permitted.")
    grace: float = option(5.0, "Seconds between SIGTERM and SIGKILL.", metavar="S", limits=within(0, 600))
    runs: Collection[str] = option((), "Also what belongs to this live run: its id or name.", "--run", metavar="RUN")
    agree: Callable[[Any], bool] = lambda plan: True


@dataclass(frozen=True, kw_only=True)
class SetupSsh(Request):
    """Requests passwordless SSH from here to every host and, with `mesh`, between all of them.

    password: of every host that does not accept the key yet. replace_key: names of hosts that may have another host
    key. key_type: of new keys; None: ed25519, and any key that is in use. limit: seconds to verify each pair. confirm:
    takes the unconfirmed host keys (passwords.NewKey). undo: remove what this added."""

    password: str | None = field(default=None, repr=False)
    password_file: str | os.PathLike[str] | None = option(
        None,
        "The password on one line, or lines 'HOST PASSWORD' (HOST may be a node set or *); no other user may be able "
        "to read it. '-' is stdin.",
        metavar="F",
        completes="file",
    )
    mesh: bool = option(True, "Also every host to every host [yes].")
    tofu: bool = option(False, "Trust unknown host keys on first use, without asking.")
    replace_key: Collection[str] = option(
        (),
        "Let this host (or node set) have a new host key; shown and confirmed like an unknown one.",
        metavar="HOST",
        completes="nodeset",
    )
    key_type: Literal["ed25519", "rsa"] | None = option(None, "Type of the keys that are made [ed25519].")
    undo: bool = option(False, "Remove what setup-ssh added, on the hosts and here.")
    limit: float = number(10.0, MOMENT)
    confirm: Callable[[Sequence[Any]], bool | None] = lambda keys: None
    ask_password: Callable[[Sequence[str]], str | None] = lambda hosts: None

    def check(self) -> None:
        if self.undo and (self.tofu or self.replace_key or self.key_type or not self.mesh):
            text = "--undo removes what was added: it goes with neither --tofu, --replace-key, --key-type nor"
            raise UsageError(f"{text} --no-mesh", hint="fleet setup-ssh --undo")

    @property
    def new_key_type(self) -> str:
        return self.key_type or "ed25519"


@dataclass(frozen=True, kw_only=True)
class Build(Request):
    """Requests to build a wheel on one host for the GPUs of all, and to install it everywhere. what: "deepspeed", or a
    tree's path. source: deepspeed's own tree. arch: "auto" or capabilities, "8.0;9.0". ops: deepspeed's, () chooses.
    on: the host that builds, None the first. cpu: build as if no host had a GPU. env: literal variables for the build.
    builds_dir: folder for logs and wheels on this machine. import_timeout: seconds for importing it on a host."""

    what: str = field(kw_only=False)
    version: str | None = option(None, "deepspeed's version [0.19.8].", metavar="V")
    source: str | os.PathLike[str] | None = option(None, "deepspeed's own tree instead.", metavar="DIR")
    arch: str = option(
        "auto", 'Compute capabilities, "8.0;9.0" [auto: those of all GPUs of all hosts].', metavar="LIST"
    )
    ops: Sequence[str] = option((), "deepspeed's ops to compile: cpu_adam,utils,...", metavar="NAMES")
    cpu: bool = option(False, "Only for the CPU, whatever GPUs there are.")
    on: str | None = option(None, "The host that builds [the first].", metavar="HOST", completes="host")
    env: Mapping[str, str] | None = option(None, "For the build; repeatable.", metavar="NAME=VALUE")
    install: bool = option(True, "Install the wheel on every host [yes].")
    builds_dir: str | os.PathLike[str] = option(
        "builds", "Where logs and wheels go on this machine [builds].", metavar="DIR"
    )
    import_timeout: float = option(
        IMPORT_SECONDS, "Seconds that importing it may take on a host.", metavar="S", limits=within(1, 3600)
    )

    def check(self) -> None:
        if not self.what:
            raise UsageError("nothing is named", hint="fleet build deepspeed; or fleet build ./my-extension")
        if self.what != "deepspeed" and (self.source or self.version or self.ops):
            raise UsageError(
                "--source, --version and --ops belong to 'fleet build deepspeed'",
                hint="for any other tree: fleet build PATH --env NAME=VALUE",
            )
        if self.source and self.version:
            raise UsageError("--version and --source exclude each other", hint="a tree has its own version")
        for name, value in (self.env or {}).items():
            check_variable("env", name, value)
