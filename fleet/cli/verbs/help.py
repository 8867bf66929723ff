"""Runs `fleet help [VERB | TOPIC]`."""

from __future__ import annotations

import click

from fleet.cli.line.command import HelpContext, Verb, completed, one_spelling, write_sections
from fleet.cli.line.options import OF_HOSTS, without
from fleet.cli.line.shipped import topics
from fleet.cli.line.verbs import VERBS
from fleet.errors import UsageError
from fleet.inventory.fields import suggest


@click.command("help", cls=Verb, examples=("fleet help launch", "fleet help lab up", "fleet help nothing"))
@click.argument("words", nargs=-1, metavar="[VERB | TOPIC]", shell_complete=completed("topic"))
@without(*OF_HOSTS, "dry_run", "json", "verbose", "quiet")
def help_(words: tuple[str, ...]) -> int:
    """Show the help of a verb, or the answer to a question; alone, which questions there are. 'options' are those that
    all verbs have.
    """
    ctx, answers, typed = click.get_current_context().find_root(), topics(), one_spelling(" ".join(words))
    if typed in answers and typed not in VERBS:
        click.echo(answers[typed], nl=False)
        return 0
    if typed in ("", "options"):
        assert isinstance(ctx.command, Verb)
        questions = {"Questions": [(name, text.partition("\n")[0]) for name, text in answers.items()]}
        formatter = ctx.make_formatter()
        write_sections(formatter, ctx.command.option_rows(ctx) if typed else questions)
        formatter.write("" if typed else "\nfleet help TOPIC answers one, fleet help VERB explains a verb.\n")
        click.echo(formatter.getvalue(), nl=False)
        return 0
    for arg in words:
        group = ctx.command
        name = one_spelling(arg)
        found = group.get_command(ctx, name) if isinstance(group, click.Group) else None
        if found is None:
            known = group.list_commands(ctx) if isinstance(group, click.Group) else []
            near = suggest(name, known if ctx.parent else [*known, *answers, "options"])
            raise UsageError(f"No such verb '{' '.join(words)}'", hint=near or "fleet --help")
        ctx = HelpContext(found, info_name=name, parent=ctx)
    click.echo(ctx.get_help())
    return 0
