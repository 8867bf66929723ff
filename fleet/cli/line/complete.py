"""Completes command lines in a shell: verbs, options and values that click knows, and the hosts and groups of the
inventory.

The shell runs it at each Tab. It reads the inventory's file and names of files. It connects to no host, and prints
nothing if it fails."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    shell_complete,
    split_arg_string,
)

from fleet.cli.line.command import parsed, spelled
from fleet.cli.line.line import settings_of
from fleet.cli.line.shipped import shipped, topics
from fleet.inventory.find import LAB, find_inventory, load
from fleet.model import Inventory
from fleet.protocol.state import is_run_id

VARIABLE = "_FLEET_COMPLETE"
MAX_BYTES = 2 << 20  # a larger inventory would take longer to read than a user waits for a Tab

# Click's own script, except that it reads by line (click's for loop globs), and passes the line up to the cursor, too.
_BASH = """\
%(complete_func)s() {
    local completion
    COMPREPLY=()
    while IFS= read -r completion; do
        case $completion in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${completion#*,}") ;;
        esac
    done < <(COMP_LINE=$COMP_LINE COMP_HEAD=${COMP_LINE:0:COMP_POINT} COMP_WORD=${COMP_WORDS[COMP_CWORD]} \
COMP_BREAKS=$COMP_WORDBREAKS %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

# Click's own script would split a value at its commas; this one does not.
_FISH = """\
function %(complete_func)s
    for completion in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp | string collect) \
COMP_CWORD=(commandline -t | string collect) COMP_LINE=(commandline -p | string collect) %(prog_name)s 2>/dev/null)
        set -l parts (string split -m 1 "," -- $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Line(ShellComplete):
    """Completes fleet's verbs, options and values. After launch's SCRIPT or exec's command it completes only files,
    because the tokens there belong to the script or command."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        assert isinstance(self.cli, click.Group)
        if args and _is_of_the_command(self.cli, args):
            return [CompletionItem(incomplete, type="file")]
        found = super().get_completions([spelled(arg) for arg in args], spelled(incomplete))
        option, equals, _ = incomplete.partition("=")
        if incomplete.startswith("--") and "_" in option and not equals:  # with underscores, as typed so far
            found = [CompletionItem(f"--{item.value[2:].replace('-', '_')}", item.type, item.help) for item in found]
        if equals and option.startswith("-"):  # click removes the option, but the shell needs the whole token
            found = [CompletionItem(f"{option}={item.value}", item.type, item.help) for item in found]
        return found


def _is_of_the_command(cli: click.Group, args: list[str]) -> bool:
    sub = parsed(["fleet", *args], cli, resilient_parsing=True)[-1]
    if isinstance(sub.command, click.Group) or sub.allow_interspersed_args:
        return False
    first = next(str(param.name) for param in sub.command.params if isinstance(param, click.Argument))
    return sub.get_parameter_source(first) is ParameterSource.COMMANDLINE and bool(sub.params[first])


class Bash(_Line, BashComplete):
    """Completes in bash. bash breaks tokens at certain characters, such as ':' and '=', and takes only the text after
    the last of these characters."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        tokens = _split(os.environ["COMP_HEAD"])
        return tokens[1:-1], tokens[-1]

    def format_completion(self, item: CompletionItem) -> str:
        value, typed = str(item.value), os.environ["COMP_WORD"]
        if item.type == "plain" and not typed.startswith(("'", '"')):
            before = _split(os.environ["COMP_HEAD"])[-1]
            last = max(before.rfind(char) for char in os.environ["COMP_BREAKS"] or "\n")
            value = value[last + (before[last : last + 1] != "@") :]  # bash breaks before an '@'
        return f"{item.type},{value}"


def _split(line: str) -> list[str]:
    """Splits a line that may end in the middle of a quoted token. The last item is the token that is being typed; it is
    "" after a blank."""
    *tokens, last = split_arg_string(line + "\0")  # \0 joins the token that is being typed, unless a blank ended it
    return [*tokens, last.removesuffix("\0")]


def complete(cli: click.Command, instruction: str) -> int:
    """Runs completion. `_FLEET_COMPLETE=bash_source fleet` prints a function for the shell, which then runs fleet with
    `bash_complete` at each Tab. Returns the exit code."""
    add_completion_class(Bash)
    add_completion_class(type("Zsh", (_Line, ZshComplete), {}))
    add_completion_class(type("Fish", (_Line, FishComplete), {"source_template": _FISH}))
    if instruction.endswith("_source"):
        if shell_complete(cli, {}, "fleet", VARIABLE, instruction) == 0:
            return 0
        click.echo("error: fleet completes for bash, zsh and fish\n  hint: fleet help completion", err=True)
        return 2
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(Exception):
        shell_complete(cli, {}, "fleet", VARIABLE, instruction)
    return 0


# -- values ------------------------------------------------------------------------------------------------------
def _inventory(ctx: click.Context, explicit: str | None = None) -> Inventory | None:
    """Returns the inventory that -i names, anywhere on the line; without -i, the one that fleet would find. Returns
    None if no inventory can be read."""
    with suppress(Exception):
        options = os.environ.get("COMP_LINE", "").partition(" -- ")[0]
        line = re.search(r"\s(?:-i\s*|--inventory[=\s]\s*)([^\s'\"]+)", options)
        explicit = explicit or settings_of(ctx).inventory or (line[1] if line else None)
        path = find_inventory(explicit, Path.cwd(), os.environ)
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            return load(path)
    return None


def nodeset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the host or @group at the end of a node set; the text before its last operator stays."""
    inventory, start, depth = _inventory(ctx), 0, 0
    for at, char in enumerate(incomplete):
        depth += (char == "[") - (char == "]")
        # an '@' at the beginning of an operand names a group; after an operand it is an operator
        if not depth and (char in ",!&^" or (char == "@" and at > start)):
            start = at + 1
    if depth or inventory is None:
        return []
    head, last = incomplete[:start], incomplete[start:]
    there = set(re.split("[,!&^@]", head))
    known = [*inventory.names, *(f"@{group}" for group in inventory.groups)]
    return [CompletionItem(head + name) for name in known if name.startswith(last) and name not in there]


def file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes a file of this machine."""
    return [CompletionItem(incomplete, type="file")]


def inventory_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes a file, or the lab's inventory."""
    return (incomplete and _starting([LAB], incomplete)) or file(ctx, param, incomplete)


def buildable(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes deepspeed, or a folder."""
    return _starting(["deepspeed"], incomplete) or file(ctx, param, incomplete)


def topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the topics of `fleet help`, after the given arguments."""
    command: click.Command | None = ctx.find_root().command
    args = ctx.params.get(str(param.name)) or ()
    for arg in args:
        command = command.get_command(ctx, arg) if isinstance(command, click.Group) else None
    known = command.list_commands(ctx) if isinstance(command, click.Group) else []
    return _starting([*known, *([] if args else ["options", *topics()])], incomplete)


def _starting(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def _hosts(ctx: click.Context, explicit: str | None = None) -> Iterable[str]:
    inventory = _inventory(ctx, explicit)
    return inventory.names if inventory else ()


def _runs(ctx: click.Context) -> Iterable[str]:
    """Returns the runs that have a folder on this machine."""
    folder = Path(ctx.params.get("runs_dir") or "runs")
    return sorted(name for path in folder.glob("*/events.jsonl") if is_run_id(name := path.parent.name))


def _of(known: Callable[[click.Context], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Returns a function that completes a token from these names."""
    return lambda ctx, param, incomplete: _starting(known(ctx), incomplete)


host = _of(_hosts)
lab_host = _of(lambda ctx: _hosts(ctx, LAB))
run_here = _of(_runs)
example = _of(lambda ctx: shipped())
