"""Runs the `fleet` command: a registry of verbs that are imported when they run, and the one place that prints
errors."""

from __future__ import annotations

import codecs
import importlib
import io
import os
import select
import sys
import time
import traceback
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from fleet.best_effort import left_out
from fleet.cli.line import hints
from fleet.cli.line.command import SETTINGS, VerbGroup
from fleet.cli.line.line import Line, Settings, running, settings_of, the_line
from fleet.cli.line.options import common_options, spelled_out
from fleet.cli.line.verbs import VERB_GROUPS, VERBS
from fleet.cli.screen.terminal import colored
from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE, FleetError, UsageError
from fleet.requests.request import OptionError
from fleet.version import __version__

REMINDING = ("hosts", "check", "exec", "sync", "launch", "ps", "runs")  # verbs for remind(): they name no run
PLAIN = "fleet.plain"  # the name under which codecs knows plain()


class LazyGroup(VerbGroup):
    """A group that imports a verb's module only when that verb is requested."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name].command.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(name, help=verb.help) for name, verb in VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for heading, verbs in VERB_GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), verb.help) for name, verb in verbs.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        formatter.write("\nOptions: fleet help VERB; of all: fleet help options. Questions: fleet help\n")

    def alone(self, ctx: click.Context) -> str:
        from fleet.cli.alone import what_next

        return what_next()


@click.group(cls=LazyGroup, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="fleet")
@common_options
def cli() -> None:
    """From a list of hosts to a running distributed training job, and back. The hosts come from -i FILE,
    $FLEET_INVENTORY, ./fleet.yaml or ./hostfile.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder is gone: {error.strerror}", hint="cd to one that is there") from None


def print_error(error: FleetError, ctx: click.Context | None, *, as_json: bool = False) -> int:
    """Prints the error that ended the command: with --json as a document on stdout, otherwise as text on stderr.
    Returns the exit code."""
    if error.hosts:
        from fleet.cli.inventory import keep_failed

        keep_failed([name for name, at in error.hosts.items() if at is not None])
    if as_json or settings_of().json:
        from fleet.cli.screen.output import write_json
        from fleet.model import Report, Result

        verb = (ctx and ctx.invoked_subcommand) or "fleet"
        results = tuple(Result(name, at is None, error=at) for name, at in error.hosts.items())
        # launch and attach write JSON lines, and the last one is the summary
        document = {
            **({"event": "summary"} if verb in ("launch", "attach") else {}),
            **Report(verb, results, error.exit_code).as_json(),
            "error": {**error.as_json(), "message": str(error)},
        }
        try:
            write_json(document)
            return error.exit_code
        except OSError:  # stdout cannot be written; stderr may
            pass
    from fleet.cli.screen.output import clean_message, inform

    inform(f"error: {clean_message(str(error))}", error.hint, **hints.of_error(error.kind))
    return error.exit_code


def give_way() -> None:
    """Replaces a terminal or pipe that accepts no more output by /dev/null: a user who interrupts wants to leave."""
    for fd in (1, 2):
        if not select.select([], [fd], [], 0)[1]:
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def interrupted() -> int:
    give_way()
    click.echo("interrupted", err=True)
    return EXIT_INTERRUPTED


def remind(ctx: click.Context) -> None:
    """Prints which runs of this folder have no head: their terminal was closed, or fleet was killed. Starts nothing."""
    is_quiet = settings_of().silent or the_line().none_live
    if is_quiet or ctx.invoked_subcommand not in REMINDING or not os.path.isdir("runs"):
        return
    from fleet.cli.screen.output import clean, inform
    from fleet.ops.run.kept.documents import reminders

    try:
        found = list(reminders(Path("runs")))
    except UsageError:  # a verb that needs these runs reports it
        return
    for notice in found:
        inform(f"{click.style('warning: ', fg='yellow')}{clean(notice.message)}", notice.hint, selection=False)


def run(argv: Sequence[str], *, typed: bool = False) -> int:
    """Runs one fleet command line, or a playbook's step, in this process. Returns the exit code. typed: a user typed
    the line, so reminders may be printed."""
    with running(Line(("fleet", *argv), cli, by_itself=typed)) as line:
        try:
            return _run(argv, line)
        finally:
            show_left_out(line.settings)


def show_left_out(settings: Settings) -> None:
    """Prints, with -v, one line about failed work on which the command's result does not depend."""
    left = left_out()
    if left and settings.verbose and not settings.json:
        from fleet.cli.screen.output import clean, inform

        what = "1 thing was" if len(left) == 1 else f"{len(left)} things were"
        inform(clean(f"{what} left out: {'; '.join(f'could not {it}: {why}' for it, why in left.items())}"))


def _run(argv: Sequence[str], line: Line) -> int:
    ctx: click.Context | None = None
    try:
        with cli.make_context("fleet", list(argv), color=colored(sys.stdout), obj=line.settings) as ctx:
            begun = time.monotonic()
            code = cli.invoke(ctx)
            if line.by_itself:
                remind(ctx)
            if line.settings.verbose and not line.settings.json:
                took = f"{time.monotonic() - begun:.2f} s, exit code {code or 0}"
                click.echo(f"{ctx.invoked_subcommand}: {took}", err=True)
        return code if isinstance(code, int) else EXIT_OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        from fleet.cli.line.slips import explained

        # --json may come after the mistake, where click does not parse it any more
        return print_error(explained(error, argv), ctx, as_json="--json" in takewhile(lambda arg: arg != "--", argv))
    except (click.Abort, KeyboardInterrupt):
        return interrupted()
    except OptionError as error:
        return print_error(spelled_out(error), ctx)
    except FleetError as error:
        return print_error(error, ctx)
    except BrokenPipeError:
        # the reader of our output has ended; keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # up to Python 3.11: Ctrl-C while a class was made
            return interrupted()
        if os.environ.get("FLEET_DEBUG"):
            raise
        if isinstance(error, OSError):  # a full disk, a home that cannot be written: not fleet's fault
            what = f"{error.filename}: " if error.filename else ""
            fault = FleetError(f"this machine: {what}{error.strerror or error}", hint="-v shows where")
        else:
            fault = FleetError(
                f"a fault in fleet itself: {type(error).__name__}: {error}", hint="-v shows where; please report it"
            )
        if line.settings.verbose:
            traceback.print_exc()
        return print_error(fault, ctx)


class Stderr(io.FileIO):
    """The file of stderr. Text that cannot be written (a full disk, a reader gone) must not change the exit code."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def plain(error: UnicodeError) -> tuple[str, int]:
    """Replaces characters that stdout's encoding (a Latin-1 terminal, C) does not have."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].replace("\u2500", "-")  # the line in a table
    return text.encode("ascii", "backslashreplace").decode(), error.end


def open_standard_streams() -> None:
    """Puts /dev/null where a standard stream is closed (`>&-`), so that no socket gets its number."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            mode = "w" if fd else "r"
            # closefd=False: if another object replaces this one, the fd must stay open
            setattr(sys, name, open(fd, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(Stderr(2, "w", closefd=False)),
        encoding=sys.stderr.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
    codecs.register_error(PLAIN, plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(errors=PLAIN)


def main() -> None:
    """Entry point of the `fleet` script."""
    open_standard_streams()
    if "_FLEET_COMPLETE" in os.environ:
        from fleet.cli.line.complete import complete

        code = complete(cli, os.environ["_FLEET_COMPLETE"])
    else:
        code = run(sys.argv[1:], typed=True)
    try:
        sys.stdout.flush()
    except OSError:  # the disk is full, which was reported already, or the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.flush()
    # everything is closed by now; the interpreter's own cleanup would only take time
    os._exit(code)
