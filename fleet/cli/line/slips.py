"""Explains a command line that fleet does not accept, and proposes the line that was probably meant."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fleet.cli.line.command import (
    CommonOption,
    NoSuchVerb,
    Slip,
    Verb,
    one_spelling,
    was_typed,
)
from fleet.cli.line.line import the_line
from fleet.cli.line.verbs import VERBS
from fleet.engines.launchers import OTHERS, REFUSED, REFUSED_IN_JOBS
from fleet.engines.names import DEFAULT
from fleet.engines.slips import LAUNCHERS
from fleet.engines.translate import Known, bare, carried, launch_arguments, options_of, typed_option
from fleet.errors import FleetError, UsageError

# other programs' names -> fleet's verb
MEANT = {
    **dict.fromkeys(("run", "start", "train"), "launch"),
    **dict.fromkeys(("copy", "push"), "sync"),
    "kill": "kill-port",
    "pull": "get",
    "status": "ps",
    "list": "hosts",
    "log": "logs",
    "cancel": "stop",
    "doctor": "check",
}
# other programs' options that no table of engines has -> fleet's
OPTIONS = {"-H": "-w", "-e": "-x", "--gpus": "--nproc-per-node", "-np": "--num-processes"}


def explained(error: click.ClickException, argv: Sequence[str]) -> UsageError:
    """Returns the error as fleet reports it. argv: the whole line without "fleet" at its beginning."""
    message, ctx = error.format_message(), getattr(error, "ctx", None)
    if isinstance(error, NoSuchVerb):
        return UsageError(message, hint=_verb(error))
    verb = ctx.command_path if ctx else " ".join(["fleet", *[arg for arg in argv if one_spelling(arg) in VERBS][:1]])
    hint = f"see {verb} --help"
    if ctx is None:
        return UsageError(message, hint=hint)
    if isinstance(error, click.NoSuchOption):
        return _option(error, ctx, argv, hint)
    if isinstance(error, click.MissingParameter) and isinstance(ctx.command, Verb) and ctx.command.examples:
        hint = ctx.command.examples[0]
    elif isinstance(error, Slip):
        hint = error.hint or hint
    return UsageError(message, hint=hint)


def _verb(error: NoSuchVerb) -> str:
    token, rest, group = error.tokens[0], error.tokens[1:], error.group
    assert isinstance(group.command, click.Group)
    if token in OTHERS and group.parent is None:
        fetches = "sync" in OTHERS[token] and any(":" in token for token in rest[:-1])
        return "see fleet get --help" if fetches else OTHERS[token]
    verbs = group.command.list_commands(group)
    near = (
        [MEANT[token]]
        if token in MEANT and group.parent is None
        else difflib.get_close_matches(one_spelling(token), verbs, n=1, cutoff=0.7)
    )
    if near:
        return f"did you mean: {group.command_path} {shlex.join([near[0], *rest])}"
    if group.parent is not None:
        return f"see {group.command_path} --help"
    if token.endswith(".py"):
        return f"fleet launch {shlex.join([token, *rest])}"
    if line := launch_line(error.tokens):
        return line
    if re.search(r"[\d.@]", token) and _is_host(token):  # a cheap test first, because the lookup takes time
        return f"fleet exec -w {shlex.quote(token)} -- {shlex.join(rest)}" if rest else f"fleet ssh {token}"
    if shutil.which(token) and not {*error.tokens} & LAUNCHERS:
        return f"fleet exec -- {shlex.join([token, *rest])}"
    return "see fleet --help"


def launch_line(tokens: Sequence[str]) -> str | None:
    """Translates a whole line of another launcher, or of Python, to a line of `fleet launch`. Returns it, or the reason
    why it cannot be translated; None if the line is neither."""
    try:
        line = launch_arguments(tokens)
    except UsageError as untranslated:
        return f"launch does that, in other words; {untranslated}: {untranslated.hint}"
    return f"fleet launch {shlex.join(line)}" if line else None


def _is_host(token: str) -> bool:
    """Returns whether the token is a node set of the inventory's hosts. No other source of hosts is used."""
    from fleet.inventory.select import select

    whole, _ = the_line().here
    try:
        return whole is not None and bool(select(whole, token, None).hosts)
    except FleetError:
        return False


def _option(error: click.NoSuchOption, ctx: click.Context, argv: Sequence[str], hint: str) -> UsageError:
    name = error.option_name
    at = next(
        (
            i
            for i, arg in enumerate(argv)
            if one_spelling(arg.partition("=")[0]) == name or (arg.startswith(name) and name[:2] != "--")
        ),
        None,
    )
    typed = argv[at].partition("=")[0] if at is not None else name
    known = [option for param in ctx.command.params if not getattr(param, "hidden", False) for option in param.opts]
    begin = next((i + 1 for i, arg in enumerate(argv) if one_spelling(arg) == ctx.command.name), 0)
    if ctx.command.name == "launch":
        tools = [DEFAULT, *values_of("--engine", argv)][-1:] + ["sbatch"] * ("slurm" in values_of("--on", argv))
        options = options_of(*tools)
        theirs = options.get(bare(typed)) or options.get(bare(name))
        reasons = REFUSED_IN_JOBS if theirs and theirs.tool == "sbatch" else REFUSED
        if refused := reasons.get(theirs.name if theirs else bare(typed)):
            return UsageError(f"{typed}: {refused[0]}", hint=refused[1])
        if theirs:
            return _theirs(ctx, options, typed, argv, begin)
    if ctx.command.name == "exec" and at is not None and "--shell" in argv[: at - 1]:
        line = list(argv).index("--shell") + 1
        hint = f"fleet {shlex.join([*argv[:line], ' '.join(argv[line:])])}"
    elif at is not None and any(OPTIONS.get(typed, "") in param.opts for param in ctx.command.params):
        value = [*argv[at].split("=")[1:], *argv[at + 1 :], ""][0]
        option = "-i" if typed == "-H" and os.path.isfile(value) else OPTIONS[typed]
        hint = f"fleet {shlex.join([*argv[:at], option + argv[at][len(typed) :], *argv[at + 1 :]])}"
    elif typed in ("-u", "-l", "--user"):
        hint = "a login is its host's own: user: in the inventory, or USER@HOST in a hostfile"
    elif near := difflib.get_close_matches(name, known, n=1, cutoff=0.75):
        hint = f"did you mean {near[0]}?"
    elif ctx.command.name == "launch":
        hint = f"the script's own options come after it{_after_the_script(ctx, argv, at)}"
    return UsageError(f"No such option: {typed}", hint=hint)


def _theirs(
    ctx: click.Context, options: Mapping[str, Known], typed: str, argv: Sequence[str], begin: int
) -> UsageError:
    """Returns the error with the line that fleet accepts, in which options of an engine or of sbatch are translated.
    begin: index of the verb's first argument."""
    ours = {
        option: not (param.is_flag or param.count)
        for param in ctx.command.params
        if isinstance(param, click.Option)
        for option in (*param.opts, *param.secondary_opts)
    }
    try:
        tokens, command = carried(options, argv[begin:], ours)
    except UsageError as untranslated:
        return untranslated
    line = f"fleet {shlex.join([*argv[:begin], *tokens, *command])}"
    return UsageError(f"No such option: {typed}", hint=line if command else f"write {shlex.join(tokens)} SCRIPT")


def values_of(option: str, argv: Sequence[str]) -> list[str]:
    """Returns the values that an option has in an argv."""
    pairs = zip(argv, [*argv[1:], ""], strict=False)
    return [(arg.partition("=")[2] or following) for arg, following in pairs if arg.partition("=")[0] == option]


def _after_the_script(ctx: click.Context, argv: Sequence[str], at: int | None) -> str:
    """Returns the line with unknown options moved after the script; an empty text if the script is not known."""
    script = next((i for i, arg in enumerate(argv) if at is not None and i > at and arg.endswith(".py")), None)
    if at is None or script is None:
        return ""
    own, others = fleets_own(ctx.command, argv[at:script])
    return f": fleet {shlex.join([*argv[:at], *own, argv[script], *others, *argv[script + 1 :]])}"


def fleets_own(command: click.Command, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns (options that `command` knows, with their values; the other arguments)."""
    known = {option: param for param in command.params if isinstance(param, click.Option) for option in param.opts}
    normal = command.context_settings.get("token_normalize_func", one_spelling)
    own, others = list[str](), list[str]()
    tokens = iter(argv)
    for token in tokens:
        param = known.get(normal(token.partition("=")[0]))
        (own if param else others).append(token)
        if param and not (param.is_flag or param.count or "=" in token):
            own += [value for value in [next(tokens, None)] if value is not None]
    return own, others


def with_options(hint: str | None, ctx: click.Context) -> str | None:
    """Returns "fleet launch train.py" with the options that were given to launch itself. In values of --env, "..."
    replaces what follows the "="."""
    begin = f"fleet {ctx.command.name} "
    if hint is None or not hint.startswith(begin):
        return hint
    tokens: list[str] = []
    for param in ctx.command.params:
        name = str(param.name)
        if (
            not isinstance(param, click.Option)
            or isinstance(param, CommonOption)
            or not was_typed(ctx, name)
            or f"{param.opts[0]} " in hint
        ):
            continue
        value: Any = ctx.params.get(name)  # the value of --ranks includes --no-fold
        for each in value if param.multiple else [value]:
            text = re.sub(r"=.*", "=...", str(each), flags=re.DOTALL) if name.startswith("env") else str(each)
            tokens += [param.opts[0]] if param.is_flag else typed_option(param.opts[0], text)
    return f"{begin}{shlex.join(tokens)} {hint.removeprefix(begin)}" if tokens else hint
