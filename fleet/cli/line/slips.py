"""A command line that fleet does not take: what was meant by it, as a line to copy."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
from collections.abc import Sequence

import click
from click.core import ParameterSource

from fleet.cli.line.command import (
    CommonOption,
    NoSuchVerb,
    Slip,
    Verb,
    one_spelling,
)
from fleet.cli.line.launchers import REFUSED
from fleet.cli.line.verbs import VERBS
from fleet.errors import UsageError

# what others call a verb
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


def explained(error: click.ClickException, argv: Sequence[str]) -> UsageError:
    """The error as fleet reports it. argv: the whole line without "fleet"."""
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
    token, rest, group = error.words[0], error.words[1:], error.group
    assert isinstance(group.command, click.Group)
    verbs = group.command.list_commands(group)
    near = (
        [MEANT[token]]
        if token in MEANT and group.parent is None
        else difflib.get_close_matches(one_spelling(token), verbs, n=1, cutoff=0.7)
    )
    if near:
        return f"did you mean: {group.command_path} {shlex.join([near[0], *rest])}"
    if group.parent is None and token.endswith(".py"):
        return f"fleet launch {shlex.join([token, *rest])}"
    if group.parent is None and shutil.which(token):
        return f"fleet exec -- {shlex.join([token, *rest])}"
    return f"see {group.command_path} --help"


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
    refused = REFUSED.get(one_spelling(name.lstrip("-"))) if ctx.command.name == "launch" else None
    if refused:
        return UsageError(f"{typed}: {refused[0]}", hint=refused[1])
    if ctx.command.name == "exec" and at is not None and "--shell" in argv[: at - 1]:
        line = list(argv).index("--shell") + 1
        hint = f"fleet {shlex.join([*argv[:line], ' '.join(argv[line:])])}"
    elif name == "-H":
        hint = "-w HOSTS chooses hosts, -i FILE the inventory"
    elif near := difflib.get_close_matches(name, known, n=1, cutoff=0.75):
        hint = f"did you mean {near[0]}?"
    elif ctx.command.name == "launch":
        hint = f"the script's own options stand behind it: {_after_the_script(ctx, argv, at, typed)}"
    return UsageError(f"No such option: {typed}", hint=hint)


def _after_the_script(ctx: click.Context, argv: Sequence[str], at: int | None, typed: str) -> str:
    """The line with the options that fleet does not have after the script."""
    script = next((i for i, arg in enumerate(argv) if at is not None and i > at and arg.endswith(".py")), None)
    if at is None or script is None:
        return f"fleet launch train.py {typed}"
    own, others = fleets_own(ctx.command, argv[at:script])
    return f"fleet {shlex.join([*argv[:at], *own, argv[script], *others, *argv[script + 1 :]])}"


def fleets_own(command: click.Command, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(options that `command` knows, with their values; the other arguments)."""
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
    """ "fleet launch train.py" with the options that were given to launch itself; what --env sets is not repeated."""
    from fleet.playbook.steps import option

    begin = f"fleet {ctx.command.name} "
    if hint is None or not hint.startswith(begin):
        return hint
    tokens: list[str] = []
    for param in ctx.command.params:
        name = str(param.name)
        if (
            not isinstance(param, click.Option)
            or isinstance(param, CommonOption)
            or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE
            or f"{param.opts[0]} " in hint
        ):
            continue
        value = ctx.params[name]
        for each in value if param.multiple else [value]:
            text = re.sub(r"=.*", "=...", str(each), flags=re.DOTALL) if name.startswith("env") else str(each)
            tokens += [param.opts[0]] if param.is_flag else option(param.opts[0], text)
    return f"{begin}{shlex.join(tokens)} {hint.removeprefix(begin)}" if tokens else hint
