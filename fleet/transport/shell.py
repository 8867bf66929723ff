"""Runs lines and scripts in a node's login shell. Makes the errors for startup files that read or print what they must
not."""

from __future__ import annotations

import contextlib
import re
import shlex
import threading
import time
from typing import TYPE_CHECKING

from fleet.errors import ConnectError, DeadlineError, FleetError, Interrupted, ProtocolError, Reason, Silent
from fleet.transport.base import PING_SECONDS, POLL_SECONDS, Cancel, CanPing, Channel, Completed, Session, clock_of

if TYPE_CHECKING:
    from typing_extensions import Self

OUTPUT_LIMIT = 64 << 20  # most bytes of a command's output
# how long a program may take to end after its last message; a lost connection shows at once
ENDING_SECONDS = 20.0


def run_line(
    session: Session, command: str, stdin: bytes = b"", *, timeout: float = 60.0, cancel: Cancel | None = None
) -> Completed:
    """Runs a constant or quoted shell line to its end, on nodes that may have no python."""
    deadline = time.monotonic() + timeout
    channel = session.start(command)
    out = bytearray()
    try:
        if stdin:
            # the process may have ended already (a nologin shell): reading shows why
            with contextlib.suppress(ConnectError):
                channel.send(stdin)
        channel.send_eof()
        while True:
            if cancel is not None and cancel.is_set():
                raise Interrupted("interrupted", host=session.host.name)
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"no answer within {timeout:g} s", host=session.host.name)
            data = channel.recv(min(left, POLL_SECONDS))
            if data == b"":
                break
            out += data or b""
            if len(out) > OUTPUT_LIMIT:
                raise ProtocolError(f"output of more than {OUTPUT_LIMIT >> 20} MiB", session.host.name)
        status = channel.wait(max(0.1, deadline - time.monotonic()))
        if status is None:
            raise ConnectError("the connection was lost", host=session.host.name, kind="lost")
        return Completed(status, bytes(out), channel.recv_stderr())
    finally:
        channel.close()


# exit status of fleet's bootstraps if stdin does not begin as fleet sent it
EATEN = 97
# sh reads the whole script before it runs any of it
_SCRIPT = f'exec sh -c \'x=$(cat); case $x in "# fleet begins"*) eval "$x" ;; *) exit {EATEN} ;; esac\''
# Finds the startup file that reads stdin. The script itself is not sent over stdin.
_ASK = (
    "command -v timeout >/dev/null || exit 0; "
    'case $SHELL in *bash) o=--norc; set -- /etc/bash.bashrc "$HOME/.bashrc" ;; '
    '*zsh) o=-f; set -- /etc/zsh/zshenv "$HOME/.zshenv" ;; '
    "*) exit 0 ;; esac; "
    'for f in "$@"; do [ -r "$f" ] || continue; echo fleet | timeout 3 "$SHELL" $o -c '
    """'. "$0" >/dev/null 2>&1; read -r x; [ "$x" = fleet ]' "$f"; """
    # 124: it took longer than 3 s
    'case $? in 0 | 124) ;; *) echo "FLEET-GUILTY $f"; exit 0 ;; esac; done'
)


# PAM's messages: no login succeeds before a new password is set
_EXPIRED = re.compile(r"(?i)password.*(?:has expired|change required|must be changed)")
_LINE = 500  # the longest line that is searched: a node may send any text


def foreign(host: str, output: bytes, what: str = "fleet's program") -> ConnectError:
    """Returns the error for a host where another program was started. output: the bytes that the other program
    printed."""
    text = output.decode("utf-8", "replace").strip()
    expired = next((line for line in text.splitlines() if len(line) <= _LINE and _EXPIRED.search(line)), None)
    if expired is not None:
        return ConnectError(
            Reason.of_node(f"the account's password has expired there: {expired.strip()[:200]}"),
            host=host,
            kind="auth",
            hint="log in there with ssh and set a new one; or 'chage -M -1 USER' there, as root",
        )
    return ConnectError(
        f"the login shell did not start {what}: {text[-300:]!r}",
        host=host,
        kind="protocol",
        hint="a forced command (command= in authorized_keys, ForceCommand in sshd_config), a "
        "restricted shell or a broken rc file: try 'ssh HOST true'",
    )


def lost(host: str) -> ConnectError:
    return ConnectError(
        "the connection was lost", host=host, kind="lost", hint="the host went down, or its sshd was stopped"
    )


def silent(host: str, seconds: float) -> Silent:
    return Silent(
        f"silent for {round(seconds, 1):g} s", host=host, kind="lost", hint="the host hangs, or the link to it is cut"
    )


def stalled(host: str, seconds: float) -> ConnectError:
    return ConnectError(
        f"it is alive, and has got nowhere for {seconds:.3g} s",
        host=host,
        kind="stalled",
        hint="a disk or file server there hangs: look at it, then run this again",
    )


def stdin_eaten(session: Session) -> ConnectError:
    """Returns the error for a host whose startup files read the stdin of fleet's program. The error names the file if
    fleet can find it."""
    try:
        output = run_line(session, f"exec sh -c {shlex.quote(_ASK)}", timeout=10.0).stdout
    except FleetError:
        output = b""
    found = re.search(rb"^FLEET-GUILTY (.{1,200})$", output, re.MULTILINE)
    file = found[1].decode("utf-8", "replace") if found else ""
    return ConnectError(
        f"the login shell's startup files read stdin, and with it the program that fleet sends{file and ': '}{file}",
        host=session.host.name,
        kind="protocol",
        hint=f"put '[ -n \"$PS1\" ] || return' at the top of {file or '~/.bashrc'} there, or '</dev/null' after the "
        "command that reads (read, cat, ssh)",
    )


class Conversation:
    """Controls a program that fleet started on a node, over the program's stdin. At the end of a `with` block, the
    program is ended."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self.host, self.session, self.clock = session.host, session, clock_of(session)
        self._channel, self._is_lost = channel, False
        self._sending = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def send_bytes(self, data: bytes, *, wait: bool = True) -> None:
        """Sends bytes to the program's stdin, from any thread. With `wait` false, it sends nothing while another thread
        sends."""
        if not self._sending.acquire(blocking=wait):
            return
        # The program may have ended already: reading its output shows why. After a failure nothing more is sent, so
        # that no ping waits for a node that reads nothing.
        try:
            if not self._is_lost:
                self._channel.send(data)
        except ConnectError:
            self._is_lost = True
        finally:
            self._sending.release()

    def _silent(self, seconds: float, started: bool, output: bytes) -> FleetError | None:
        """Returns the error for a program that sent nothing for `seconds`; None if the program has ended."""
        if not started:  # a startup file may wait for the end of stdin
            self._channel.send_eof()
            if self._channel.wait(PING_SECONDS) is not None:
                return None
            if output:
                return foreign(self.host.name, output)
            if isinstance(self.session, CanPing) and self.session.answers():
                return Silent(
                    f"sshd answers there, and the login shell has not begun anything for {seconds:g} s",
                    host=self.host.name,
                    kind="lost",
                    hint="does its home hang (a file server?), or a startup file (~/.bashrc) wait? 'ssh HOST' shows",
                )
        return silent(self.host.name, seconds)

    def _status(self, started: bool, output: bytes) -> int:
        """Returns the program's exit status. Raises an error if the program did not start, or if the connection is
        lost."""
        status = self._channel.wait(ENDING_SECONDS)
        if status is None:
            raise lost(self.host.name)
        if not started:
            eaten = status == EATEN
            raise stdin_eaten(self.session) if eaten else foreign(self.host.name, output or b"exit status %d" % status)
        return status


def run_script(session: Session, text: bytes, *, timeout: float, cancel: Cancel | None = None) -> Completed:
    """Runs a script for any POSIX sh, which is sent over stdin."""
    done = run_line(session, _SCRIPT, b"# fleet begins\n" + text, timeout=timeout, cancel=cancel)
    if done.status == EATEN:
        raise stdin_eaten(session)
    return done
