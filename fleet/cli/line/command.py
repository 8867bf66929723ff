"""Defines what the click commands of all verbs share: help with sections and examples, at 80 columns, and one spelling
of dashes and underscores."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from fleet.cli.line.line import the_line
from fleet.cli.line.shipped import topics

F = TypeVar("F", bound=Callable[..., Any])  # the function that a decorator gets
COMMON, DAILY = "Common options", "Options of a day"
MANY, ALL = 25, "fleet.help-all"  # with more options a verb's help is short at first; key of a context's `meta`
ONLY_LOOKS = "no run is stopped"  # printed if a verb that only shows runs is interrupted
# the limits of a number in click's help; they are left out, because an error shows them
_RANGE = re.compile(r"; [\d.<=>x]*x[\d.<=>]+(?=\])|  \[[\d.<=>x]*x[\d.<=>]+\]")
_DEFAULT = re.compile(r"\.  \[default: ([^\]]+?)(?:\.0)?\]$")


def one_spelling(token: str) -> str:
    """Returns a token with dashes: --nproc_per_node and --nproc-per-node, setup_ssh and setup-ssh are the same."""
    return token.replace("_", "-")


def spelled(token: str) -> str:
    """Returns a token with the name of its long option in one spelling. Its value, and any other token, stay as they
    are."""
    name, equals, value = token.partition("=")
    return f"{one_spelling(name)}{equals}{value}" if token.startswith("--") else token


Completion = Callable[[click.Context, click.Parameter, str], list[Any]]
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "token_normalize_func": one_spelling}


def completed(what: str) -> Completion:
    """Returns a function of complete.py, for `shell_complete=`. The module is imported when a shell requests
    completion."""
    return lambda *typed: getattr(import_module("fleet.cli.line.complete"), what)(*typed)


def was_typed(ctx: click.Context, name: str | None) -> bool:
    """Returns whether the command line gives this parameter a value."""
    return ctx.get_parameter_source(str(name)) not in (ParameterSource.DEFAULT, None)


def rest_of(ctx: click.Context) -> list[str]:
    """Returns the arguments that a group's context left to its verb."""
    return [*ctx._protected_args, *ctx.args]


def parsed(argv: Sequence[str], group: click.Group, **more: Any) -> list[click.Context]:
    """Returns the contexts of the group and of its verb, for an argv that begins with the program's name. Raises
    ClickException for an invalid line. more: arguments of the contexts."""
    command: click.Command | None = group
    ctx, rest, found = None, list(argv[1:]), list[click.Context]()
    while command is not None and (rest or not isinstance(command, click.Group)):  # a group without a verb prints help
        with command.make_context(command.name, rest, parent=ctx, **more) as ctx:
            found.append(ctx)
            if not isinstance(command, click.Group) or not (left := rest_of(ctx)):
                break
            _, command, rest = command.resolve_command(ctx, left)
    return found


class Slip(click.UsageError):
    """A mistake on the command line. hint: what was probably meant; None if that is not known."""

    def __init__(self, message: str, ctx: click.Context | None, hint: str | None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


class OneOf(click.Choice[str]):
    """A choice whose error proposes the nearest value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            from difflib import get_close_matches

            near = get_close_matches(str(value), self.choices, n=1)
            raise Slip(error.format_message(), ctx, f"did you mean {near[0]}?" if near else None) from None


class FleetOption(click.Option):
    """An option of fleet. daily: it is in the short help of a verb with many options. section: the section of its
    verb's help that lists it."""

    def __init__(self, *args: Any, daily: bool = False, section: str | None = None, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.daily, self.section = daily, section


class CommonOption(FleetOption):
    """An option that is valid before and after every verb. It is hidden in the help of a verb for which it has no
    meaning."""


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


HELP_ALL = CommonOption(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    daily=True,
    callback=_show_all,
    help="Show all options and exit.",
)


class Coloured(click.HelpFormatter):
    """Writes help with coloured headings and names; `click.echo` removes the colours if the output is no terminal."""

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: Any, **spaces: Any) -> None:
        super().write_dl([(click.style(name, fg="cyan"), text) for name, text in rows], *args, **spaces)


def write_sections(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Writes each section that has rows."""
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


class HelpContext(click.Context):
    """The context of a command, whose help is coloured."""

    formatter_class = Coloured


class Verb(click.Command):
    """A command whose help has sections and examples; with many options the help shows the daily ones only.

    sections: the headings of its options, in order; options without a section are under "Options". interrupted: a
    sentence that says what Ctrl-C does; None if the command stops in an orderly way."""

    context_class = HelpContext

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        sections: Sequence[str] = (),
        interrupted: str | None = None,
        **attrs: Any,
    ) -> None:
        super().__init__(*args, **attrs)
        self.examples = tuple(examples)
        self.sections = tuple(sections)
        self.interrupted = interrupted

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [*params[:-1], HELP_ALL, params[-1]] if self.has_many else params

    @property
    def has_many(self) -> bool:
        """Returns whether the verb has so many options that its help shows the daily ones only, unless --help-all is
        given."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        return sum(not isinstance(option, CommonOption) for option in options) > MANY

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_more, ctx.allow_extra_args = ctx.allow_extra_args, True
        rest = super().parse_args(ctx, args)
        ctx.allow_extra_args = takes_more
        if rest and not takes_more and not ctx.resilient_parsing:
            hosts = any("--hosts" in param.opts and not getattr(param, "hidden", False) for param in self.params)
            meant = hosts and not any(isinstance(param, click.Argument) for param in self.params)
            hint = f"{ctx.command_path} -w {shlex.quote(','.join(rest))}" if meant else None
            raise Slip(f"Got unexpected extra argument{'s' * (len(rest) > 1)} ({' '.join(rest)})", ctx, hint)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        the_line().command = self
        return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  $ {example}\n")

    def option_rows(self, ctx: click.Context, *, daily: bool = False) -> dict[str, list[tuple[str, str]]]:
        """Returns heading -> [(option, help)] of the options that this command offers. daily: only the daily ones."""
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*self.sections, "Options", COMMON)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            is_help = "--help" in param.opts
            if record is not None and (is_help or getattr(param, "daily", False) or not daily):
                common = isinstance(param, CommonOption) or is_help
                section = getattr(param, "section", None)
                heading = COMMON if common else section if section in self.sections else "Options"
                rows[heading].append((record[0], _DEFAULT.sub(r" [\1].", _RANGE.sub("", record[1]))))
        return rows

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = self.option_rows(ctx)
        if short := self.has_many and ALL not in ctx.meta:
            more, rows = sum(map(len, rows.values())), {DAILY: [*chain(*self.option_rows(ctx, daily=True).values())]}
        write_sections(formatter, rows)
        if short:
            formatter.write(f"\n{more - len(rows[DAILY])} more: {ctx.command_path} --help-all\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if text := topics().get(ctx.command_path.removeprefix("fleet ")):
            formatter.write(f"\n{text}")


class NoSuchVerb(click.UsageError):
    """No verb has this name. tokens: the name, and all tokens after it."""

    def __init__(self, tokens: Sequence[str], ctx: click.Context) -> None:
        super().__init__(f"No such verb '{tokens[0]}'", ctx)
        self.tokens, self.group = tuple(tokens), ctx


class VerbGroup(Verb, click.Group):
    """A command with subcommands."""

    command_class = Verb

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(self.alone(ctx))
            ctx.exit()
        rest = super().parse_args(ctx, args)
        if not rest_of(ctx) and not self.invoke_without_command and not ctx.resilient_parsing:
            raise Slip("a verb is missing", ctx, "fleet --help shows them")
        return rest

    def alone(self, ctx: click.Context) -> str:
        """Returns what the command prints when nothing follows it."""
        return ctx.get_help()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        arg = args[0]
        if one_spelling(arg) not in self.list_commands(ctx) and arg[:1] != "-" and not ctx.resilient_parsing:
            raise NoSuchVerb(args, ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)
