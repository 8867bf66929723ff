"""Writes the parts of docs/ that the code knows better: `python -m tools.reference`.

They stand between `<!-- from the code: NAME -->` and `<!-- end -->`; tests/unit/test_docs.py holds that they are new.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from fleet import errors
from fleet.answers import event, run_events
from fleet.cli.line.command import COMMON, SETTINGS, Verb
from fleet.cli.line.verbs import VERB_GROUPS
from fleet.cli.main import cli
from fleet.engines.launchers import OPTIONS, REFUSED, REFUSED_IN_JOBS, SAME
from fleet.engines.translate import options_of
from fleet.inventory.fields import FIELDS, OF_ONE_HOST
from fleet.node.container.explain import SURE
from fleet.node.container.platforms import PLATFORMS
from fleet.protocol import files
from fleet.protocol.gpu_fields import GPU_FIELDS
from fleet.rules.ended import ended_by
from fleet.rules.judge import RULES

DOCS = Path(__file__).parents[1] / "docs"
ENDS = DOCS.parent / "tests/golden/hints"
THINGS = ("nodes", "least", "most", "rank", "each", "master")
BLOCK = re.compile(r"(?s)(<!-- from the code: ([a-z ]+) -->\n).*?(<!-- end -->)")


def table(*rows: tuple[str, ...]) -> str:
    """Markdown's table, the first row its heads."""
    first, *rest = ("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows)
    return "\n".join([first, "|" + " --- |" * len(rows[0]), *rest]) + "\n"


def _options(rows: Iterable[tuple[str, str]]) -> str:
    return table(("option", ""), *((f"`{flags}`", means) for flags, means in rows))


def _told(command: click.Command) -> str:
    """The docstring, wrapped."""
    paragraphs = re.split(r"\n\s*\n", (command.help or "").strip())
    return "\n\n".join(textwrap.fill(" ".join(each.split()), 120, break_on_hyphens=False) for each in paragraphs)


def _command(command: click.Command, ctx: click.Context, level: int) -> Iterator[str]:
    name = ctx.command_path
    yield f"{'#' * level} {name}\n\n{_told(command)}\n\n```text\n{ctx.command.get_usage(ctx)}\n```\n"
    assert isinstance(command, Verb)
    if command.examples:
        yield "```console\n" + "".join(f"$ {example}\n" for example in command.examples) + "```\n"
    for heading, rows in command.option_rows(ctx).items():
        if rows and heading != COMMON:
            yield (f"{heading}:\n\n" if heading != "Options" else "") + _options(rows)
    if isinstance(command, click.Group):
        for word in command.list_commands(ctx):
            inner = command.get_command(ctx, word)
            assert inner
            yield from _command(inner, click.Context(inner, info_name=word, parent=ctx), level + 1)


def commands() -> str:
    """Every verb: what it does, its usage, its examples and its own options."""
    root = click.Context(cli, info_name="fleet", terminal_width=100)
    parts: list[str] = []
    for verbs in VERB_GROUPS.values():
        for verb in verbs:
            command = cli.get_command(root, verb)
            assert command
            parts += _command(command, click.Context(command, info_name=verb, parent=root), 2)
    return "\n".join(parts)


def common_options() -> str:
    assert isinstance(cli, Verb)
    return _options(cli.option_rows(click.Context(cli, info_name="fleet", **SETTINGS))[COMMON])


def host_keys() -> str:
    """What a host may be told in an inventory."""
    of_one = dict.fromkeys(OF_ONE_HOST, " (of one host: no default, no node set)")
    rows = [(f"`{key}`", f"`{field.example}`", field.means + of_one.get(key, "")) for key, field in FIELDS.items()]
    env = ("`env`", "`{NCCL_DEBUG: WARN}`", "variables for everything that runs there")
    return table(("key", "example", "means"), *rows, env)


def error_kinds() -> str:
    """The error classes by exit code, as --json names them."""
    classes: list[type[errors.FleetError]] = errors.FleetError.__subclasses__()
    classes = [*sorted(classes, key=lambda each: (each.exit_code, each.kind)), errors.FleetError]
    rows = []
    for each in classes:
        said = "A fault in fleet itself." if each is errors.FleetError else (each.__doc__ or "").split("\n")[0]
        rows.append((f"`{each.kind}`", str(each.exit_code), re.sub(r" \(exit \d+\)", "", said)))
    return table(("kind", "exit code", ""), *rows)


def rules() -> str:
    """What `fleet check` and preflight find, by the name that stands behind a finding."""
    rows = []
    for rule in RULES:
        where = "in a launch" if rule.needs == "launch" else f"where {rule.needs} is needed"
        alone = f"error {where}, else warning" if rule.needs else rule.severity
        severities = [str(severity) for _, severity in rule.levels] or [alone]
        rows.append((f"`{rule.id}`", " or ".join(severities), rule.what, rule.remedy))
    return table(("rule", "severity", "about", "remedy"), *rows)


def gpu_fields() -> str:
    """What `nvidia-smi` is asked for, of each GPU."""
    rows = [
        (f"`{name}`", kind, " or ".join(f"`{field}`" for field in fields), since, rule and f"`{rule}`")
        for name, kind, fields, since, rule in GPU_FIELDS
    ]
    return table(("key", "type", "nvidia-smi's field", "driver", "rule"), *rows)


def hints() -> str:
    """Returns what ranks wrote last, as recorded for tests, and the hint that fleet then shows."""
    ends = (ended_by(path.read_text("utf-8").partition("hint: ")[0]) for path in sorted(ENDS.glob("*.txt")))
    rows = {textwrap.shorten(end.why or "", 170): (end.remedy or "").replace("{host}", "HOST") for end in ends}
    return table(("what a rank wrote", "hint"), *((f"`` {why} ``", remedy) for why, remedy in rows.items() if remedy))


def same_options() -> str:
    """Of other launchers, that `fleet launch` takes."""
    rows = {f"`--{theirs.replace('-', '_')}`": f"`--{ours}`" for theirs, ours in SAME.items()}
    forms = {
        "`--rdzv_endpoint HOST:PORT`": "`--master-addr`, `--master-port`",
        "`--num_processes N`": "`--nproc-per-node`: N shared out to the hosts; or their slots, where these add up to N",
    }
    return table(("theirs", "fleet's"), *{**rows, **forms}.items())


def refused_options() -> str:
    """Of other launchers, that it does not."""
    rows = [(f"`--{name.replace('-', '_')}`", *told) for name, told in REFUSED.items()]
    return table(("theirs", "why not", "instead"), *rows)


def refused_in_jobs() -> str:
    """Of sbatch, that it does not."""
    return table(
        ("sbatch's", "why not", "instead"), *((f"`--{name}`", *told) for name, told in REFUSED_IN_JOBS.items())
    )


def passed_options() -> str:
    """Of other launchers and of sbatch, that it passes on."""
    rows = []
    for tool in OPTIONS:
        names = dict.fromkeys(known.name for known in options_of(tool).values() if known.passed)
        shown = ", ".join(f"`{name if tool == 'sbatch' else name.replace('-', '_')}`" for name in names)
        rows += [(tool, f"`--{'sbatch' if tool == 'sbatch' else 'engine'}-arg=--NAME=VALUE`", shown)] if names else []
    return table(("of", "written", "NAME"), *rows)


def platforms() -> str:
    """Those whose variables are known, each once."""
    rows: dict[str, tuple[str, ...]] = {}
    for it in PLATFORMS:
        known = {thing: [f"`{name.partition(':')[0]}`" for name in it.get(thing, ())] for thing in THINGS}
        counts = list(dict.fromkeys(known["least"] + known["most"] + known["nodes"]))
        shown = (counts, known["rank"], known["each"], known["master"])
        cells = [", ".join(dict.fromkeys(names)) or "-" for names in shown]
        rows.setdefault(f"`{it['name']}`", (*cells, SURE[it["sure"]]))
    head = ("platform", "nodes", "node rank", "ranks", "master", "known")
    return table(head, *((name, *cells) for name, cells in rows.items()))


def origins() -> str:
    """Returns where each platform's variables were read."""
    rows = {(it["name"], it["origin"]): None for it in PLATFORMS}
    return "".join(f"- `{name}`: {origin}\n" for name, origin in rows)


def files_on(rows: Iterable[tuple[str, str]]) -> Callable[[], str]:
    """Paths on a node, several in one row with commas between them."""
    return lambda: table(("path", "holds"), *((f"`{paths.replace(', ', '`, `')}`", holds) for paths, holds in rows))


def events() -> str:
    """Of a run."""
    rows = [(f"`{name}`", kind.place, inspect.cleandoc(kind.__doc__ or "")) for name, kind in event.KINDS.items()]
    rows += [(f"`{name}`", event.STREAM, what) for name, what in run_events.OTHERS.items()]
    places = (event.BOTH, event.STREAM, event.FILE)
    return table(
        ("event", "in", "when, and with what"),
        *((name, place, " ".join(what.split())) for each in places for name, place, what in rows if place == each),
    )


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "common options": common_options,
    "host keys": host_keys,
    "error kinds": error_kinds,
    "rules": rules,
    "gpu fields": gpu_fields,
    "events": events,
    "hints": hints,
    "same options": same_options,
    "refused options": refused_options,
    "refused in jobs": refused_in_jobs,
    "passed options": passed_options,
    "platforms": platforms,
    "origins of platforms": origins,
    "files on a node": files_on(files.FOLDERS),
    "files of a run": files_on(files.OF_A_RUN),
    "files of deliveries": files_on(files.OF_DELIVERIES),
}


def renewed(text: str) -> str:
    """A page with its blocks made anew; KeyError where it names one that is not known."""
    return BLOCK.sub(lambda block: f"{block[1]}{PARTS[block[2]]()}{block[3]}", text)


def main() -> None:
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text("utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, "utf-8")
            print(f"{page.relative_to(DOCS.parent)}: renewed")


if __name__ == "__main__":
    main()
