"""Takes the place of sshd where a scheduler starts processes and no user logs in. It dials the head, and starts the
commands that the head requests, each with a connection of its own.

spec: {"head": [[address, port]], "tls": {"cert", "key", "peer"}, "step", "scope": marks of all that is started, "name":
the variable that has this host's name, "unset": a pattern of variables that must not reach what is started here}.

All agents of a step get the same spec. So they hold one certificate ("cert"), and the head another ("peer"), whose key
is nowhere else. An agent is identified by a token that it draws itself. The token's digest is the one line that it
prints, and the scheduler reports to the head which of its tasks printed it. The token is sent to the head alone.

An agent sends {"host", "token"}, and receives {"start": number, "command"} for each channel; then it dials again and
sends {"host", "token", "channel": number}. What follows there are frames: fleet/protocol/frames.py.

The step ends when its agents do. So one that has lost its head goes on while anything it started is there: a run's
supervisor has a lease, and another head may find it."""

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time

from fleet.node.base import json
from fleet.node.base.processes import with_env
from fleet.node.base.types import Any
from fleet.node.base.wire import start_thread
from fleet.node.delivery.chain.link import NONSENSE, Link, tls_context
from fleet.node.relay.pump import pump
from fleet.protocol.state import SCOPE

LINE_BYTES = 1 << 20
MARK = "FLEET_STEP"  # of all that is started here
PRINTED = "fleet agent %s"  # with the token's digest
RETRY_SECONDS = 1.0
IDLE_SECONDS = 20.0  # without a head, and with nothing that was started here
DIAL_SECONDS = 5.0


def digest_of(token: str) -> str:
    """Returns what may be printed of a token: its sha256."""
    return hashlib.sha256(token.encode()).hexdigest()


def dial(spec: "dict[str, Any]", context: "Any", **said: "Any") -> Link:
    """A connection to the head, at the first of its addresses that answers, and a line there. OSError."""
    wrong: OSError = OSError("no address")
    for address, port in spec["head"]:
        try:
            plain = socket.create_connection((address, port), DIAL_SECONDS)
            try:
                link = Link(plain, context, False, spec["tls"])
                link.send_line({**spec["me"], **said})
                return link
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            wrong = error
    raise wrong


def serve(spec: "dict[str, Any]", context: "Any", number: int, command: str) -> None:
    """One channel, from its command's start to its end."""
    try:
        link = dial(spec, context, channel=number)
    except OSError:
        return
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=os.path.expanduser("~"),
        start_new_session=True,
    )
    pump(link.sock, process)


def report(spec: "dict[str, Any]", context: "Any", number: int) -> None:
    """The scheduler has signalled its step: the head ends the run, and this agent with it."""
    try:
        dial(spec, context, signal=number).sock.close()
    except OSError:
        pass


def heed(spec: "dict[str, Any]", context: "Any") -> bool:
    """Do what the head requests; True where it reports that this was all. OSError, or one of NONSENSE: it is gone."""
    link = dial(spec, context)
    link.sock.settimeout(None)
    while True:
        request = link.read_line(LINE_BYTES)
        if "start" not in request:
            return True
        start_thread(serve, spec, context, int(request["start"]), str(request["command"]))


def main() -> None:
    spec = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    host = os.environ.get(spec["name"]) or socket.gethostname()
    spec["me"] = {"host": host, "token": os.urandom(32).hex()}
    unset = re.compile(spec["unset"])
    for name in [name for name in os.environ if unset.fullmatch(name)]:
        del os.environ[name]
    os.environ[MARK], os.environ[SCOPE] = spec["step"], spec["scope"]
    try:
        context = tls_context(False, spec["tls"])
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        sys.exit("%s: its python3 has no TLS 1.3: %s" % (host, error))

    def handle(number: int, _: object) -> None:
        start_thread(report, spec, context, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, handle)
    print(PRINTED % digest_of(spec["me"]["token"]), flush=True)
    over, received = False, time.monotonic()
    while not over and (time.monotonic() - received < IDLE_SECONDS or with_env(MARK, spec["step"])):
        try:
            over = heed(spec, context)
            received = time.monotonic()
        except (OSError, *NONSENSE):
            time.sleep(RETRY_SECONDS)
