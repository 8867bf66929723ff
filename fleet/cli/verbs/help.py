"""`fleet help [VERB]`"""

from __future__ import annotations

import click

from fleet.cli.line.command import Verb, completed, one_spelling
from fleet.cli.line.options import without
from fleet.errors import UsageError
from fleet.inventory.fields import suggest

COMPLETION = """\
Verbs, options, their values, and the hosts and groups of your inventory are
completed by your shell after one line in its start-up file:

  bash, ~/.bashrc:                    eval "$(_FLEET_COMPLETE=bash_source fleet)"
  zsh, ~/.zshrc, behind compinit:     eval "$(_FLEET_COMPLETE=zsh_source fleet)"
  fish, ~/.config/fish/config.fish:   _FLEET_COMPLETE=fish_source fleet | source

Hosts are those of the inventory that the line names with -i, else of the one
that fleet would find: fleet -i lab exec -w lab01,<Tab>
"""


@click.command("help", cls=Verb, examples=("fleet help launch", "fleet help lab up"))
@click.argument("words", nargs=-1, metavar="[VERB | completion]", shell_complete=completed("topic"))
@without(
    "inventory", "hosts", "exclude", "transport", "fanout", "connect_timeout", "dry_run", "json", "verbose", "quiet"
)
def help_(words: tuple[str, ...]) -> int:
    """Show the help of fleet, of a verb, or how your shell completes fleet's command lines."""
    if words == ("completion",):
        click.echo(COMPLETION, nl=False)
        return 0
    ctx = click.get_current_context().find_root()
    for word in words:
        group = ctx.command
        name = one_spelling(word)
        found = group.get_command(ctx, name) if isinstance(group, click.Group) else None
        if found is None:
            known = group.list_commands(ctx) if isinstance(group, click.Group) else []
            raise UsageError(f"No such verb '{' '.join(words)}'", hint=suggest(name, known) or "fleet help")
        ctx = click.Context(found, info_name=name, parent=ctx)
    click.echo(ctx.get_help())
    return 0
