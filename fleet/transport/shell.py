"""The login shell before every command on a node: what its startup files may do to what fleet sends."""

from __future__ import annotations

import re
import shlex

from fleet.errors import ConnectError, FleetError
from fleet.transport.base import Cancel, Completed, Session
from fleet.transport.line import run_line

# what fleet's beginnings exit with when stdin does not begin as it was sent
EATEN = 97
# sh reads the script as a whole before it does any of it
_SCRIPT = f'exec sh -c \'x=$(cat); case $x in "# fleet begins"*) eval "$x" ;; *) exit {EATEN} ;; esac\''
# Which startup file leaves something else of stdin than it was given. Nothing of this comes over stdin itself.
_ASK = (
    "command -v timeout >/dev/null || exit 0; "
    'case $SHELL in *bash) o=--norc; set -- /etc/bash.bashrc "$HOME/.bashrc" ;; '
    '*zsh) o=-f; set -- /etc/zsh/zshenv "$HOME/.zshenv" ;; '
    "*) exit 0 ;; esac; "
    'for f in "$@"; do [ -r "$f" ] || continue; echo fleet | timeout 3 "$SHELL" $o -c '
    """'. "$0" >/dev/null 2>&1; read -r x; [ "$x" = fleet ]' "$f" && continue; echo "FLEET-GUILTY $f"; exit 0; done"""
)


def foreign(host: str, said: bytes) -> ConnectError:
    """The error for a host where something else than fleet's program was started. said: what came instead."""
    return ConnectError(
        f"the login shell did not start fleet's program: {said.decode('utf-8', 'replace').strip()[-300:]!r}",
        host=host,
        kind="protocol",
        hint="a forced command (command= in authorized_keys, ForceCommand in sshd_config), a "
        "restricted shell or a broken rc file: try 'ssh HOST true'",
    )


def lost(host: str) -> ConnectError:
    return ConnectError(
        "the connection was lost", host=host, kind="lost", hint="the host went down, or its sshd was stopped"
    )


def silent(host: str, seconds: float) -> ConnectError:
    return ConnectError(
        f"silent for {seconds:g} s", host=host, kind="lost", hint="the host hangs, or the link to it is cut"
    )


def stdin_eaten(session: Session) -> ConnectError:
    """The error for a host whose login shell reads what is meant for fleet's program; with the file, where it tells."""
    try:
        said = run_line(session, f"exec sh -c {shlex.quote(_ASK)}", timeout=10.0).stdout
    except FleetError:
        said = b""
    found = re.search(rb"^FLEET-GUILTY (.{1,200})$", said, re.MULTILINE)
    file = found[1].decode("utf-8", "replace") if found else ""
    return ConnectError(
        f"the login shell's startup files read stdin, and with it the program that fleet sends{file and ': '}{file}",
        host=session.host.name,
        kind="protocol",
        hint=f"put '[ -n \"$PS1\" ] || return' at the top of {file or '~/.bashrc'} there, or '</dev/null' behind the "
        "command that reads (read, cat, ssh)",
    )


def run_script(session: Session, text: bytes, *, timeout: float, cancel: Cancel | None = None) -> Completed:
    """Run a script for any POSIX sh, sent over stdin."""
    done = run_line(session, _SCRIPT, b"# fleet begins\n" + text, timeout=timeout, cancel=cancel)
    if done.status == EATEN:
        raise stdin_eaten(session)
    return done
