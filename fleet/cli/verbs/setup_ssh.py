"""Runs `fleet setup-ssh`."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.answers.hosts import SetUp, SetUpAll
from fleet.api import Planned
from fleet.cli.context import CliFleet, interruptible, perform
from fleet.cli.line.command import Verb
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import request_options, without
from fleet.cli.screen import layout, terminal
from fleet.cli.screen.output import clean, echo, fold, groups_by, inform
from fleet.cli.screen.progress import ProgressLine
from fleet.events import Event, Notice
from fleet.model import Report
from fleet.requests.hosts import SetupSsh
from fleet.rules.units import counted

if TYPE_CHECKING:
    from fleet.ops.setup_ssh.passwords import NewKey


def _terminal() -> bool:
    """Returns whether a user can answer on the terminal, which may be there even if stdin is a pipe."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ask_password(hosts: Sequence[str]) -> str | None:
    """Returns the password that a user types, hidden, on the terminal; None without a terminal, or for an empty
    answer."""
    if not _terminal():
        return None
    try:
        with interruptible(), terminal.prompt():
            return getpass.getpass(f"password for {clean(fold(hosts))}, asked once: ") or None
    except EOFError:
        return None


def answer(lines: Callable[[int | None], Sequence[str]]) -> str | None:
    """Returns the answer that is typed after these lines, in lower case. Returns None without a terminal. lines:
    returns the lines for the width of the terminal."""
    if not _terminal():
        return None
    with interruptible(), terminal.prompt(), Path("/dev/tty").open("r+b", buffering=0) as tty:
        tty.write("\n".join(lines(terminal.width(tty))).encode())
        return tty.readline().decode("utf-8", "replace").strip().lower()


def confirm(keys: Sequence[NewKey]) -> bool | None:
    """Shows the unconfirmed host keys. Returns the user's one answer for all of them; None without a terminal."""
    reply = answer(lambda width: [*table(keys, width), "Accept them? Type 'yes' if they are right: "])
    if reply == "y":
        reply = answer(lambda width: ["'y' is not enough for keys that are not verified. Type 'yes' in full: "])
    return None if reply is None else reply == "yes"


def table(keys: Sequence[NewKey], width: int | None = None) -> list[str]:
    """Returns the lines about keys: host, address, key type, fingerprint, and the fingerprints that the key would
    replace."""
    rows = [[clean(cell) for cell in (k.host, k.target, k.key.type, k.key.fingerprint, ", ".join(k.old))] for k in keys]
    return [
        f"{counted(len(rows), 'host key')} not known yet:",
        *layout.table(
            ("host", "address", "type", "fingerprint", "instead of"), rows, width, keys=2, once="all of them"
        ),
    ]


class Remarks(ProgressLine):
    """Prints notices with their hints, and warnings in spite of --quiet. Notices about hosts come at the end, one for
    each cause."""

    def __init__(self) -> None:
        super().__init__()
        self._levels = ("error", "warning") if settings_of().quiet else ("error", "warning", "info")
        self._of_hosts: list[Notice] = []

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Notice):
            self.feed(event)
        elif event.host:
            self._of_hosts.append(event)
        else:
            self._warn([event])

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._warn(self._of_hosts)

    def _warn(self, notices: Sequence[Notice]) -> None:
        from fleet.rules.causes import by_cause

        for level in self._levels:
            for cause in by_cause([(n.host, n.message, n.hint) for n in notices if n.level == level]):
                hosts = [host for host in cause.whose if host]
                inform(clean(f"{level}: {f'host {fold(hosts)}: ' if hosts else ''}{cause.message}"), cause.hint)


def show(report: Report) -> None:
    """Prints what was done, in a few lines."""
    whole, each = report.read(SetUpAll), {result.host: result.read(SetUp) for result in report.results}
    for name, one in each.items():
        key = one.host_key
        if key and key.how in ("trusted on first use", "replaced"):
            echo(clean(f"{name}: host key {key.how}: {key.type} {key.fingerprint}"))
    if whole.head.changed:
        echo(clean(f"this machine: {', '.join(whole.head.changed)}"))
    changed = [result for result in report.results if each[result.host].changed]
    for what, names in groups_by(changed, lambda result: ", ".join(each[result.host].changed)).items():
        echo(clean(f"{fold(names)}: {what}"))
    if not whole.changed and report.ok:
        echo("nothing to change")
    if whole.pairs is None or not any(r.ok for r in report.results):
        return
    echo(
        f"checked: {counted(whole.pairs.from_head, 'login')} from this machine"
        + (f", {whole.pairs.verified} between hosts (each also with itself)" if whole.pairs.verified else "")
    )


@click.command("setup-ssh", cls=Verb, examples=("fleet setup-ssh", "fleet setup-ssh --tofu --password-file pw"))
@request_options(SetupSsh, "password_file", "mesh", "tofu", "replace_key", "key_type", "undo")
@without("transport")
def setup_ssh(replace_key: tuple[str, ...], **given: Any) -> int:
    """Passwordless SSH from here to every host and between all of them, every pair verified.

    The password is requested once, used only where the key is not accepted yet, and kept nowhere. Host keys are
    checked against the inventory's host_key, or shown and confirmed. Run twice, the second run changes nothing.
    """
    from fleet.inventory.select import select

    def plan(fleet: CliFleet) -> Planned:
        chosen = (select(fleet.inventory, nodeset, None, "--replace-key").names for nodeset in replace_key)
        return fleet.plan.setup_ssh(
            replace_key=[name for names in chosen for name in names],
            limit=fleet.connect_timeout,
            confirm=confirm,
            ask_password=ask_password,
            **given,
        )

    return perform(plan, show, line=Remarks(), **({"undo": True} if given["undo"] else {}))
