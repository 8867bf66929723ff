"""Verifies every pair by plain ssh: from the head to every host, and from every node to every node."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.each import on_each
from fleet.errors import FleetError, HostFailed, Reason
from fleet.events import Notice, Progress
from fleet.inventory.nodeset import fold
from fleet.model import Host, Result, grouped
from fleet.ops.setup_ssh.node import MARK, script
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.local import finish
from fleet.transport.shell import run_script
from fleet.transport.ssh.keys import AGENT_HINT, Agent

HEAD = "head"
NO_KEY = "it has no key of its own"
CHECKING = "checking that every host reaches every other"
# AT_ONCE: number of ssh processes of all sources together. A process costs about ten ms of CPU on both ends, and sshd
# drops new connections from the tenth on (MaxStartups). LANES: number of ssh processes of one node
AT_ONCE = 48
LANES = 4
HEAD_LANES = 8
_MEANING = {"124": "no answer in time", "255": "ssh failed without a message"}


@dataclass(frozen=True)
class Pair:
    """Holds one direction: ssh on `source` ("head" or a host) to `target`. reason: why it fails, or None if it
    works."""

    source: str
    target: str
    reason: str | None = None


def text(targets: Sequence[str], lanes: int, limit: float, config: str = "") -> bytes:
    """Returns the script for one source, after its values."""
    values = {"TARGETS": " ".join(targets), "LANES": str(lanes), "LIMIT": str(max(1, round(limit))), "CONFIG": config}
    return "".join(f"{k}={shlex.quote(v)}\n" for k, v in values.items()).encode() + script("verify.sh")


def parse(source: str, targets: Sequence[str], output: bytes) -> list[Pair]:
    """Returns the pairs of one source. A target that the output does not mention has failed."""
    found: dict[str, str | None] = {}
    general = "no answer"
    for line in output.rpartition(MARK)[2].decode("utf-8", "replace").split("\n"):
        keyword, _, rest = line.partition(" ")
        if keyword == "FAIL":
            general = rest
        elif keyword == "PAIR" and len(parts := rest.split(" ", 2)) >= 2:
            text = parts[2].strip() if len(parts) > 2 else ""
            found[parts[0]] = None if parts[1] == "0" else text or _MEANING.get(parts[1], f"exit status {parts[1]}")
    return [Pair(source, target, found.get(target, general)) for target in targets]


def from_head(targets: Sequence[str], home: Path, limit: float, runtime: Runtime) -> list[Pair]:
    """Verifies plain ssh from this machine. -F names the config if $HOME is not the home in the user database. An
    ssh-agent that hangs is not used, because ssh would wait for it without a limit."""
    same = home.resolve() == Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    script = text(targets, HEAD_LANES, limit, "" if same else str(home / ".ssh" / "config"))
    argv, seconds = ["/bin/sh", "-c", 'eval "$(cat)"'], _patience(len(targets), HEAD_LANES, limit)
    return parse(HEAD, targets, finish(argv, script, seconds, runtime.cancel.is_set, _environment(limit, runtime))[1])


def _environment(limit: float, runtime: Runtime) -> dict[str, str]:
    agent = Agent()
    agent.keys(limit)
    agent.close()
    if agent.trouble:
        runtime.emit(
            Notice(
                "warning",
                f"{agent.trouble}: plain ssh hangs on it, too; the connections were verified without it",
                hint=AGENT_HINT,
            )
        )
    return {k: v for k, v in os.environ.items() if k != "SSH_AUTH_SOCK" or not agent.trouble}


def _patience(targets: int, lanes: int, limit: float) -> float:
    """Returns a generous time limit. A lane gives up after three silent targets."""
    return 60 + 4 * (limit + 20) + 6.0 * targets / lanes


def among(hosts: Sequence[Host], keyless: Mapping[str, str], limit: float, runtime: Runtime) -> list[Pair]:
    """Verifies plain ssh from each of these hosts to all hosts, including itself. keyless: host without a key -> the
    reason; other hosts still connect to such a host. Each host begins with its successor in the list, so that the hosts
    do not all connect to the same host at once."""
    names = [host.name for host in hosts]
    lanes = max(1, min(LANES, AT_ONCE // max(1, min(len(names), runtime.fanout))))
    done = {name: [Pair(name, target, why) for target in names] for name, why in keyless.items()}

    def task(session: Session, host: Host) -> Result:
        at = names.index(host.name) + 1
        targets = names[at:] + names[:at]
        answer = run_script(
            session, text(targets, lanes, limit), timeout=_patience(len(targets), lanes, limit), cancel=runtime.cancel
        )
        done[host.name] = parse(host.name, targets, answer.stdout)
        runtime.emit(Progress(None, CHECKING, sum(map(len, done.values())), len(names) ** 2, "count"))
        return Result(host.name, ok=True)

    for result in on_each([h for h in hosts if h.name not in keyless], runtime, task, what=CHECKING):
        if result.error is not None:
            done[result.host] = [Pair(result.host, name, str(result.error.message)) for name in names]
    return [pair for name in names for pair in done[name]]


def as_error(source: str, failed: Sequence[Pair], total: int) -> FleetError:
    """Returns the error of one source's pairs: each reason with its targets, folded."""
    by_reason = grouped((brief(pair), pair.target) for pair in failed)
    message = Reason(
        "plain ssh from {hosts} fails to {count} of {total}: ", hosts=source, count=len(failed), total=total
    )
    for i, (reason, targets) in enumerate(by_reason.items()):
        message += Reason(f"{'; ' if i else ''}{{targets{i}}}: ", **{f"targets{i}": fold(targets)}) + reason
    return HostFailed(message, host=source, kind="pairs", hint=hint_for(failed[0].reason or ""))


def brief(pair: Pair) -> str:
    """Returns ssh's message without the parts that name this one target, so that equal reasons are equal."""
    reason = (pair.reason or "").removeprefix("ssh: ")
    reason = re.sub(r"^connect to host \S+ port \d+: ", "", reason)
    return re.sub(r"^Could not resolve hostname \S+: ", "the name does not resolve: ", reason)


SSHD_HINT = (
    "see its log; AuthorizedKeysFile, PubkeyAuthentication and AllowUsers in its sshd_config, "
    "and who may write to the home"
)


# part of an ssh message, in lower case -> the remedy
_HINTS = (
    (
        "ssh-keygen is not",
        "install OpenSSH's client there (Debian: apt-get install openssh-client), then run this "
        "again; --no-mesh does without",
    ),
    ("no space left", "free some space in ~/.ssh there ('df -h ~/.ssh', 'quota -s'), then run this again"),
    (NO_KEY, "--key-type rsa makes one of another type; --no-mesh does without"),
    ("not resolve", "the name means nothing there: set address or data_address in the inventory"),
    ("permission denied", f"sshd there does not take keys from ~/.ssh/authorized_keys: {SSHD_HINT}"),
    ("host key verification", "another key is on file there: --replace-key HOST"),
    ("timed out", "a firewall, or the wrong address as seen from there: set data_address"),
    ("refused", "is that the port as seen from there?"),
    ("no route", "the address cannot be reached from there: set data_address"),
    ("configuration option", "an old or damaged ~/.ssh/config there"),
)


def hint_for(reason: str) -> str:
    """Returns the hint for a message of ssh."""
    return next((hint for part, hint in _HINTS if part in reason.lower()), "try it there by hand: ssh HOST true")
