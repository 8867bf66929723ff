"""Defines the request of `fleet exec`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from fleet.errors import UsageError
from fleet.requests.option import option
from fleet.requests.request import HINT, MOMENT, OptionError, Request, number, within


@dataclass(frozen=True, kw_only=True)
class Exec(Request):
    """Run exactly `argv` on every host, or the line `shell` in its shell. Times are seconds.

    timeout: the command is ended after that, None: never. grace: between SIGTERM and SIGKILL. keep: False leaves the
    outputs to events. env_of: "python" for the environment of each host's training interpreter. stdin: bytes, or a
    file open for reading them, for the command on every host; None: an empty one."""

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
            raise UsageError("give either a command behind '--' or --shell LINE", hint=example)
        if self.argv and not self.argv[0] or self.shell is not None and not self.shell.strip():
            raise UsageError("the command is empty", hint=example)
        if isinstance(self.stdin, str):
            raise OptionError("stdin", "is a text: must be bytes, or a file of them")
