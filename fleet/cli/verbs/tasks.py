"""Runs `fleet play tasks.py[:NAME] [ARGS]`: fabric's tasks. It imports fabric, so import it only to play a task
file."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout

import click

from fleet.cli.context import CliFleet, ask, finish, interruptible
from fleet.cli.inventory import load_all_hosts, load_inventory
from fleet.cli.line.line import settings_of
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, echo, inform, write_pairs, write_plan, write_report
from fleet.cli.screen.progress import ProgressLine
from fleet.cli.verbs.exec import line_for, show_outputs
from fleet.errors import EXIT_OK, FleetError, UsageError
from fleet.model import Inventory, Report
from fleet.tasks.connection import Connection as Connection
from fleet.tasks.files import Step, TaskFile
from fleet.tasks.ground import TaskState, using_state
from fleet.tasks.named import NamedTasks
from fleet.tasks.run import TasksPlan, run
from fleet.transport import DEFAULT

HELP = ("-h", "--help")
LIST = ("-l", "--list", *HELP)


def the_hosts() -> tuple[Inventory | None, Inventory]:
    """Returns (the selected hosts, all hosts). The selection is None without an inventory: tasks may then name
    hosts."""
    settings = settings_of()
    try:
        return load_inventory(), load_all_hosts()
    except FleetError:
        if settings.inventory or settings.hosts:
            raise
        return None, Inventory(())


@contextmanager
def aside(json: bool) -> Iterator[None]:
    """With --json, keeps stdout for the document: output of the task file and of processes that it starts here goes to
    stderr."""
    if not json:
        yield
        return
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def sudo_password() -> str:
    if not (terminal.interactive(sys.stdin) and terminal.interactive(sys.stderr)):
        raise UsageError(
            "--prompt-for-sudo-password: no user can answer here",
            hint="$FABRIC_SUDO_PASSWORD, or sudo.password in fabric.yaml",
        )
    with interruptible(), terminal.prompt():
        return str(click.prompt("sudo's password on the hosts", hide_input=True, err=True))


def checked(token: str, tokens: Sequence[str], inventory: Inventory | None, json: bool) -> None:
    """Raises UsageError or InventoryError if a playbook's step `task` names no task, or has wrong arguments for it."""
    named = existing(NamedTasks.of(token))
    with using_state(TaskState(inventory or Inventory(()))), aside(json):
        TaskFile(named.path).steps(
            [named.task, *tokens] if named.task else tokens, inventory or Inventory(()), chosen=False
        )


def existing(named: NamedTasks | None) -> NamedTasks:
    if named is None:
        raise UsageError("a task is in a Python file", hint="tasks.py:NAME")
    if not named.path.exists():
        raise UsageError(f"there is no {named.path}", hint="tasks.py:NAME is a file and a task of it")
    return named


def play_tasks(named: NamedTasks, tokens: Sequence[str], *, no_fold: bool = False, ask_sudo: bool = False) -> int:
    """Runs the tasks that the arguments name. Returns the exit code."""
    settings = settings_of()
    existing(named)
    selected, all_hosts = the_hosts()
    fleet = CliFleet(
        selected or all_hosts, all_hosts, settings.transport, settings.fanout, settings.connect_timeout, ask=ask
    )
    with using_state(TaskState(all_hosts)) as ground:
        password = sudo_password() if ask_sudo and not settings.dry_run else None
        with aside(settings.json):
            file = TaskFile(named.path, password)
        if named.task is None and tokens and tokens[0] in LIST:
            return show_tasks(file)
        meant = [named.task, *tokens] if named.task else [*tokens]
        if meant and meant[-1] in HELP:
            return show_task(file, meant[-2])
        plan = TasksPlan(file, tuple(file.steps(meant, selected, chosen=settings.hosts is not None)))
        if settings.dry_run:
            return write_plan(plan)
        with ExitStack() as stack:
            progress = stack.enter_context(line_for(no_fold))
            stack.enter_context(aside(settings.json))
            passwords = ground.password_for if settings.transport == DEFAULT else None
            ground.runtime = stack.enter_context(fleet.runtime(progress, passwords))
            report = run(plan, ground.runtime, lambda step, part: show(step, part, progress, len(plan.steps)))
        code = finish(report)
        if settings.verbose and not settings.json:
            for result in report.results:
                if result.error is not None and result.error.__cause__ is not None:
                    traceback.print_exception(result.error.__cause__)
        return code


def show(step: Step, report: Report, progress: ProgressLine, count: int) -> None:
    """Prints the output of a step's hosts."""
    settings = settings_of()
    if settings.json:
        return
    if count > 1 and not settings.quiet:
        inform(click.style(f"# {clean(step.as_typed)}", bold=True))
    show_outputs(report.results, progress)


def show_task(file: TaskFile, name: str) -> int:
    """Prints a task's docstring and options."""
    about, options = file.help(name)
    for line in [*about, *([""] if about and options else [])]:
        echo(clean(line))
    write_pairs(options, "  ")
    return EXIT_OK


def show_tasks(file: TaskFile) -> int:
    report = Report("play", (), EXIT_OK, {"tasks": file.about})
    return write_report(report, lambda _: write_pairs(file.about.items()), requested=True)
