"""Runs `fleet play FILE`: each step of a playbook, as a command line of its own."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fleet.cli.inventory import load_inventory
from fleet.cli.line.command import SETTINGS, FleetOption, Verb
from fleet.cli.line.line import Settings, settings_of
from fleet.cli.line.options import common_options, pairs
from fleet.cli.line.shipped import find, shipped
from fleet.cli.line.values import no_fold_option
from fleet.cli.line.verbs import VERBS
from fleet.cli.main import cli, run
from fleet.cli.screen.output import advise, clean, collecting, inform, write_json
from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, FleetError, UsageError
from fleet.inventory import secret as secrets
from fleet.inventory.select import select
from fleet.model import Inventory
from fleet.playbook.read import load
from fleet.playbook.steps import Param, Step, starting_at
from fleet.tasks.named import NamedTasks

# options that hold for the whole playbook. A step does not take them; its key "on" selects its hosts
_NOT_IN_STEPS = ("inventory", "hosts", "exclude", "dry-run", "json", "quiet", "verbose")
OF_YAML, OF_TASKS = "A YAML playbook", "Python tasks"
ENV_OPTIONS = ("--env", "--env-expand")


def command_of(verb: str) -> click.Command:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command


def param_of(param: click.Parameter) -> tuple[str, Param]:
    """Returns (the parameter's name in a playbook, what it takes)."""
    many = param.multiple or param.nargs != 1
    if not isinstance(param, click.Option):
        return str(param.name), Param("argument", multiple=many, required=param.required)
    on = next((o for o in param.opts if o.startswith("--")), param.opts[0])
    off = next((o for o in param.secondary_opts if o.startswith("--")), None)
    return on.lstrip("-"), Param("flag" if param.is_flag or param.count else "value", on, off, many)


@dataclass
class CliVerbs:
    """Implements playbook.steps.Verbs: runs each step as a line of fleet's click commands. shared: the common options,
    which come before each step's verb.

    inventory: the hosts that steps select from; None if it cannot be read yet (a step may bring the lab up).
    """

    shared: Sequence[str] = ()
    dry_run: bool = False
    inventory: Inventory | None = None

    def names(self) -> list[str]:
        return [*(name for name, verb in VERBS.items() if verb.step), "task"]

    def params(self, verb: str) -> Mapping[str, Param]:
        params = command_of("play" if verb == "task" else verb).params
        known = dict(param_of(param) for param in params if getattr(param, "section", None) != OF_YAML)
        return {name: param for name, param in known.items() if name not in _NOT_IN_STEPS}

    def validate(self, argv: Sequence[str]) -> None:
        verb, *rest = argv
        try:
            parent = click.Context(cli, info_name="fleet", **SETTINGS)
            with redirect_stdout(io.StringIO()):  # the --help of a step would print its help here
                ctx = command_of(verb).make_context(verb, rest, parent=parent)
        except click.exceptions.Exit:
            raise UsageError("asks for help, it runs nothing") from None
        except click.ClickException as error:
            raise UsageError(" ".join(error.format_message().split())) from error
        hosts = self.inventory
        if (on := settings_of(ctx).hosts) is not None and hosts:
            hosts = select(hosts, on, None, "on:")
        if verb == "play":
            from fleet.cli.verbs.tasks import checked

            checked(ctx.params["file"], ctx.params["args"], hosts, "--json" in self.shared)

    def run(self, argv: Sequence[str]) -> int:
        if self.dry_run and not any("--dry-run" in p.opts for p in command_of(argv[0]).params):
            return EXIT_OK  # this verb has no --dry-run; the step's command was printed before
        return run([*self.shared, *argv])


def shared_options(settings: Settings) -> list[str]:
    """Returns the common options of `fleet play` as arguments for each step."""
    default = Settings()
    argv = ["-i", settings.inventory] if settings.inventory else []
    for name in ("on", "hosts", "exclude", "transport", "fanout", "connect_timeout"):
        value = getattr(settings, name)
        if value != getattr(default, name):
            argv.append(f"--{name.replace('_', '-')}={value}")
    argv += [f"--{name.replace('_', '-')}" for name in ("dry_run", "json", "quiet") if getattr(settings, name)]
    return argv + ["-v"] * settings.verbose


class Play(Verb):
    """Passes all arguments after a task file to the tasks, including options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            first = parser.parse_args(list(args))[0].get("file")
        except click.ClickException:  # reported below
            first = None
        ctx.allow_interspersed_args = not (isinstance(first, str) and NamedTasks.of(first))
        return super().parse_args(ctx, args)


@click.command(
    "play",
    cls=Play,
    examples=(
        "fleet play playbooks/demo.yaml --var password_file=pw --var node=gpu02",
        "fleet --dry-run play tasks.py:deploy",
        "fleet play tasks.py:deploy --branch main",
    ),
    sections=(OF_YAML, OF_TASKS),
)
@click.option(
    "--var",
    "vars_",
    cls=FleetOption,
    section=OF_YAML,
    multiple=True,
    metavar="NAME=VALUE",
    help="A value for a variable of the playbook.",
)
@click.option(
    "--from",
    "from_",
    cls=FleetOption,
    section=OF_YAML,
    metavar="STEP",
    help="Begin with this step: its number, or its name.",
)
@no_fold_option(section=OF_TASKS)
@click.option(
    "--prompt-for-sudo-password",
    "ask_sudo",
    cls=FleetOption,
    section=OF_TASKS,
    is_flag=True,
    help="Ask for the password of c.sudo.",
)
@click.argument("file", metavar="PLAYBOOK|TASKS.py[:NAME]", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@common_options
def play(
    vars_: tuple[str, ...], from_: str | None, no_fold: bool, ask_sudo: bool, file: str, args: tuple[str, ...]
) -> int:
    """Run the steps of PLAYBOOK in order, up to the first that fails; its exit code is play's.

    PLAYBOOK is a file, or the name of one that comes with fleet ('fleet examples' lists them). It is checked as a
    whole before anything runs (121). The common options given here hold for every step.

    TASKS.py: its fabric tasks (@task) on all hosts at once, each with its own connection; ARGS are their options,
    and further tasks. --list after it shows them.
    """
    if named := NamedTasks.of(file):
        if vars_ or from_:
            option = "--var" if vars_ else "--from"
            raise UsageError(f"{option} is for YAML playbooks", hint="a task's own options come after its name")
        if not named.imports_tasks():
            what = f"{file} imports nothing that tasks are made of; {file}:NAME plays a task all the same"
            raise UsageError(what, hint=f"fleet launch {shlex.join([file, *args])}")
        from fleet.cli.verbs.tasks import play_tasks

        return play_tasks(named, args, no_fold=no_fold, ask_sudo=ask_sudo)
    if args:
        raise UsageError(f"{args[0]}: a YAML playbook takes no arguments", hint="a variable: --var NAME=VALUE")
    return play_steps(vars_, from_, file)


def play_steps(vars_: tuple[str, ...], from_: str | None, file: str) -> int:
    """Runs the steps of a YAML playbook; returns the exit code. With --json it writes what each step did: its argv, its
    exit code, and the JSON documents that it wrote."""
    playbook = Path(file)
    settings = settings_of()
    shared = shared_options(settings)  # before the hosts are read: with --on, reading sets a transport
    if not playbook.exists() and (known := find(str(playbook), "playbooks")):
        playbook = shipped()[known]
        inform(f"playing fleet's own {known}")
    try:
        inventory = load_inventory()
    except FleetError:
        inventory = None
    verbs = CliVerbs(shared, settings.dry_run, inventory)
    every = load(playbook, verbs, pairs("--var", vars_))
    steps = every if from_ is None else starting_at(every, from_)
    narrowed = next((s for s in steps if settings.hosts and s.on), None)
    if narrowed:
        raise UsageError(
            "this step names its own hosts ('on'), so -w for the whole playbook is not possible",
            where=narrowed.where,
            hint="leave hosts out with -x, or drop -w",
        )

    done = list[dict[str, Any]]()
    code, shown = EXIT_OK, [arg for arg in verbs.shared if arg not in ("--json", "--quiet")]
    for at, step in enumerate(steps, 1):
        if not settings.quiet:
            title = f"# {clean(step.name)}\n" if step.name else ""
            command = "$ fleet " + clean(shlex.join([*shown, *masked(step.argv)]))
            inform(f"\n{title}{click.style(command, bold=True)}")
        kept: AbstractContextManager[list[Any]] = collecting() if settings.json else nullcontext([])
        with kept as documents:
            ended = verbs.run(step.argv)
        done.append({"argv": masked(step.argv), "exit_code": ended, "documents": documents})
        if ended == EXIT_OK:
            continue
        if step.ignore_errors and ended != EXIT_INTERRUPTED:  # an interrupt is never ignored
            inform(f"{step.where}: this step ended in {ended}; ignored, as the playbook says")
            continue
        code, left = ended, len(steps) - at
        rest = f"; {left} after it {'was' if left == 1 else 'were'} not run" if left else ""
        inform(f"{step.where}: this step ended in {code}{rest}")
        if not settings.dry_run:
            given = [arg for name in hidden(vars_, every) for arg in ("--var", name)]
            line = ["fleet", *shown, "play", file, *given, "--from", str(step.number)]
            advise(f"when it is mended, from here on: {shlex.join(line)}")
        break
    if settings.json:
        write_json({"verb": "play", "ok": code == EXIT_OK, "exit_code": code, "hosts": {}, "steps": done})
    return code


def masked(argv: Sequence[str]) -> list[str]:
    """Returns a step's argv with *** for secrets: all values of --env and --env-expand, and what looks like a secret in
    other arguments, above all in those of a script."""
    shown = secrets.masked(argv, ENV_OPTIONS, lambda name, value: None)
    end = shown.index("--") if "--" in shown else len(shown)
    ours = (secrets.masked_argv([arg])[0] if arg[:1] != "-" else arg for arg in shown[:end])
    return [*ours, *secrets.masked_argv(shown[end:])]


def hidden(vars_: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """Returns the NAME=VALUE pairs of --var for a hint, with *** for secret values.

    A value is secret if it is in an argument that masked() changes, and one of these holds: the argument is hidden as a
    whole; the variable's name, or the rest of the argument, looks like the name of a secret."""
    masks = [pair for step in steps for pair in zip(step.argv, masked(step.argv), strict=True) if pair[0] != pair[1]]
    out = []
    for variable in vars_:
        name, _, value = variable.partition("=")
        filled = [(each, seen) for each, seen in masks if value and value in each]
        secret = any(
            seen == "***" or secrets.SECRET.search(f"{name}={each.replace(value, '')}") for each, seen in filled
        )
        out.append(f"{name}=***" if secret else variable)
    return out
