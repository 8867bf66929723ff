"""Runs `ssh -G` to get OpenSSH's own settings of one host."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fleet.errors import ConnectError, FleetError, Interrupted
from fleet.model import grouped
from fleet.node.base.wire import decode
from fleet.transport.base import Cancel, Once
from fleet.transport.local import finish
from fleet.transport.ssh.settings import HEEDED, UNHEEDED, Query, Settings, expand, split_value, tilde, tokens

SECONDS = 10.0  # a command in the config (Match exec) or a name server may take long
_FILES = ("userknownhostsfile", "globalknownhostsfile")
# ssh -G expands ~ and tokens in values of these keywords, and prints other values as they are written
_EXPANDED = (*_FILES, "identityagent")
_NO_HOST = "nobody.invalid"


class NoClient(ConnectError):
    """Reports that this machine has no ssh."""


class JumpLoop(ConnectError):
    """Reports that the config reaches a gateway through itself."""


class SshClient:
    """Runs ssh once for each host, for a few hosts at a time.

    files: the user's config and others. plain: ssh reads the user's config as it is. If false, the result of `text`
    replaces its content. lines: every line of the files, {keyword: {value: "FILE:LINE"}}, because ssh -G prints no line
    numbers.
    """

    def __init__(
        self,
        home: Path,
        files: tuple[Path, ...],
        plain: bool,
        text: Callable[[], bytes],
        lines: Mapping[str, Mapping[str, str]],
    ) -> None:
        me = pwd.getpwuid(os.getuid())
        self._home, self._files, self._text, self._lines = home, files, text, lines
        self._own, self._me = Path(me.pw_dir), me.pw_name
        # without -F ssh reads exactly these files; it takes ~ from the user database
        self._plain = plain and files == (self._own / ".ssh/config", Path("/etc/ssh/ssh_config"))
        self._answers: Once[Settings] = Once(lambda answer: not isinstance(answer.exception(), Interrupted))
        self._spellings = cache(self._read_spellings)
        self._at_once = threading.BoundedSemaphore(max(2, os.cpu_count() or 1))

    def ask(self, query: Query, why: str, cancel: Cancel | None = None) -> Settings:
        """Returns the settings for this host. why: the FILE:LINE that only ssh can read. Raises
        ConnectError(kind="config")."""
        answer = self._once(query, lambda: self._compare(query, why, cancel))
        return {key: list(values) for key, values in answer.items()}

    def _once(self, query: Query | None, work: Callable[[], Settings]) -> Settings:
        try:
            return self._answers.get(query, work)
        except FleetError as error:
            # each caller adds its own host's name
            raise error.but(host=None) from None

    def _compare(self, query: Query, why: str, cancel: Cancel | None) -> Settings:
        unset = self._once(None, lambda: self._run(["-F", "none", "-G", "--", _NO_HOST], why, cancel))
        argv = [*([] if self._plain else ["-F", "/dev/stdin"]), "-T", "-N", "-G"]
        if any("%C" in value for values in self._lines.values() for value in values):
            argv += ["-o", "ControlPath=/%C"]
        try:
            options = self._run([*argv, *query.argv()], why, cancel)
        except JumpLoop:
            # "Host *" with ProxyJump also matches the gateway
            options = self._run([*argv, "-o", "ProxyJump=none", *query.argv()], why, cancel)
        found = {key: options[key] for key in (*HEEDED, *UNHEEDED) if key in options and options[key] != unset.get(key)}
        if "controlpath" in options:
            found["%C"] = [(options["controlpath"][0][0][1:], "")]
        ssh_sees = tokens(query, found, self._own, self._me)
        return {key: self._placed(key, [value for value, _ in values], ssh_sees) for key, values in found.items()}

    def _placed(self, key: str, values: list[str], ssh_sees: Mapping[str, str]) -> list[tuple[str, str]]:
        """Returns these values with their FILE:LINE. ssh joins file names with blanks, which the names may hold, too.
        So the names are split as in the line that they come from, and ~ stands for fleet's home."""
        plain, open_ends = self._spellings(key)
        placed: list[tuple[str, str]] = []
        for value in values:
            parts, where = plain.get(value, ([], ""))
            for raw, line in open_ends if not where else ():
                with contextlib.suppress(ValueError):
                    if value == " ".join(tilde(expand(part, ssh_sees), self._own) for part in raw):
                        parts, where = raw, line
                        break
            if key not in _EXPANDED:
                parts = [value]
            elif not where:
                parts = value.replace("%", "%%").split(" ")
            placed += [(part, where) for part in parts]
        return placed

    def _read_spellings(self, key: str) -> tuple[dict[str, tuple[list[str], str]], list[tuple[list[str], str]]]:
        """Returns ({value as ssh -G prints it: (its parts, FILE:LINE)}, [(parts, FILE:LINE)] of values that ssh
        expands)."""
        plain: dict[str, tuple[list[str], str]] = {}
        for raw, where in self._lines.get(key, {}).items():
            parts = split_value(raw)
            plain.setdefault(" ".join(parts), (parts, where))
            plain.setdefault(raw, (parts, where))
        open_ends = [(parts, where) for text, (parts, where) in plain.items() if set("~%$") & set(text)]
        return plain, open_ends if key in _EXPANDED else []

    def _run(self, argv: list[str], why: str, cancel: Cancel | None) -> Settings:
        """Runs ssh. Returns {keyword: [(value, ""), ...]} of all that it prints."""
        # ssh reads Include by glob(3), which takes ~ from HOME
        env = {**os.environ, "HOME": str(self._home)}
        config = self._whole() if "/dev/stdin" in argv else b""
        try:
            with self._at_once:
                status, out, err = finish(
                    ["ssh", *argv], config, SECONDS, None if cancel is None else cancel.is_set, env
                )
        except FileNotFoundError:
            raise NoClient(
                "only OpenSSH's own client understands this line, and it is not on this machine",
                where=why,
                kind="config",
                hint="install it (Debian: apt install openssh-client)",
            ) from None
        if cancel and cancel.is_set():
            raise Interrupted("interrupted")
        if status is None:
            raise ConnectError(
                f"ssh -G gives no answer within {SECONDS:g} s",
                where=why,
                kind="config",
                hint="does a 'Match exec' there hang, or the name server (CanonicalizeHostname)?",
            )
        if status:
            raise self._refusal(decode(err), why)
        lines = (line.partition(" ") for line in decode(out).split("\n"))
        return grouped((key.lower(), (value, "")) for key, _, value in lines)

    def _whole(self) -> bytes:
        """Returns the content of one file for -F. It includes the other files, because with -F ssh reads no others. The
        user's lines keep their numbers."""
        others = "".join(f'Include "{file}"\n' for file in self._files[1:])
        return self._text() + b"\nMatch all\n" + others.encode()

    def _refusal(self, err: str, why: str) -> ConnectError:
        lines = [line.strip() for line in err.split("\n") if line.strip()]
        for line in lines:
            match = re.match(r"(.*?):? line (\d+): (.*)", line)
            if match:
                file = str(self._files[0]) if match[1] == "/dev/stdin" else match[1]
                return ConnectError(match[3].rstrip("."), where=f"{file}:{match[2]}", kind="config")
        refusal = JumpLoop if lines and lines[0].startswith("jumphost loop") else ConnectError
        return refusal(
            lines[0] if lines else "ssh -G fails without a message",
            where=why,
            kind="config",
            hint="'ssh -G HOST' shows the same",
        )
