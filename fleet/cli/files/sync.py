"""`fleet sync [SRC] [--to DEST]`"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import click

from fleet.answers.sync import Mirrored, Synced
from fleet.cli.context import Part, ask, run_parts, the_fleet
from fleet.cli.inventory import load_inventory
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.options import Limited, common_options, settings_of
from fleet.cli.screen.output import clean, fold, groups_by, talk, warn_of_own, warn_of_source, write_grouped
from fleet.cli.screen.progress import ProgressLine
from fleet.errors import InventoryError, UsageError
from fleet.model import Inventory, Report, Result
from fleet.requests.sync import Sync, SyncWheels
from fleet.rules.units import counted, size_text


def _line(result: Result) -> str:
    done = result.read(Synced)
    if done.same:
        return f"the same folder as the source, nothing to do: {done.to}"
    if done.shared_with is not None:
        return f"the same folder as on {done.shared_with}: written once"
    if not done.changed and not done.deleted:
        return f"nothing to change, {'1 entry' if done.entries == 1 else f'{done.entries} entries'} in {done.to}"
    deleted = f", {done.deleted} deleted" if done.deleted else ""
    if done.changed and not done.sent:
        return f"{done.changed} folders, links or modes set{deleted}, in {done.to}"
    sent = f"{counted(done.sent or 0, 'file')} sent ({size_text(done.bytes or 0)})"
    return f"{sent}, verified{deleted}, in {done.to}"


def show(report: Report) -> None:
    """One line per group of hosts to which the same happened, then what was left alone."""
    done, whole = [r for r in report.results if r.ok], report.read(Mirrored)
    write_grouped(done, _line)
    for kept, names in groups_by(done, lambda r: tuple(r.read(Synced).kept or ())).items():
        for path in kept:
            talk(f"warning: host {fold(names)}: kept {clean(path)}: gone from the source, but changed on the node")
    warn_of_own((r.host, r.read(Synced)) for r in done)
    if done and not whole.entries:
        talk(f"warning: {clean(whole.source)} holds nothing to carry")
    if whole.ignored and settings_of().verbose:
        talk(clean(whole.ignored))
    warn_of_source(whole)


class SyncVerb(Verb):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """--force has a value behind a '=' only: what follows it is SRC."""
        end = args.index("--") if "--" in args else len(args)
        own = [arg.replace("--force=", "--force-only=", 1) if arg.startswith("--force=") else arg for arg in args[:end]]
        return super().parse_args(ctx, own + args[end:])


@click.command(
    "sync",
    cls=SyncVerb,
    examples=(
        "fleet sync",
        "fleet sync src --to '~/work/src'",
        "fleet sync --data /data/imagenet:/data/",
        "fleet sync --data checkpoints/last.pt --from gpu01",
        "fleet sync --wheels requirements.txt",
    ),
    sections={
        "Code": ["to", "delete_excluded", "max_delete", "all", "copy_unsafe_links", "source_id"],
        "What is the nodes' own": ["force", "force_only", "keep"],
        "Data": ["data", "from_host", "limit"],
        "Wheels": ["wheels", "refresh", "import_timeout"],
        "Questions": ["yes"],
    },
)
@click.argument("src", required=False, shell_complete=completed("file"))
@click.option("--to", metavar="DEST", help="Folder on the hosts [the inventory's workdir, else this folder's path].")
@click.option(
    "--force",
    is_flag=True,
    help="Replace without asking what is in the way: a node's own files, which are kept there for 30 days, "
    "and what another source's sync put there. With --wheels: install also what breaks a package there.",
)
@click.option(
    "--force-only",
    metavar="PATTERN",
    multiple=True,
    help="The same as --force=PATTERN: replace a node's own files that it names; repeatable.",
)
@click.option("--keep", is_flag=True, help="Leave what is a node's own, and go on with the rest.")
@click.option("--delete-excluded", is_flag=True, help="Delete what was delivered and is left out now by a pattern.")
@click.option(
    "--max-delete",
    type=Limited(Sync, "max_delete", int),
    metavar="N|all",
    help="Delete up to N files on a host without asking, or all; by default most of what is there is asked for.",
)
@click.option(
    "--all",
    is_flag=True,
    help="Send what is left out unasked, too: environments, caches, folders like .aws; never private keys.",
)
@click.option("--copy-unsafe-links", is_flag=True, help="Send what links that lead out of the source point to.")
@click.option(
    "--source-id",
    metavar="ID",
    help="What the source is known by, where it is made again and again, as in CI [an id of this folder].",
)
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Send what the sync: section names outside the inventory's folder, and with --wheels replace what the hosts "
    "have, without asking.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="PATH[:DEST]",
    shell_complete=completed("file"),
    help="Instead of code: data or a model, by pipelined broadcast; repeatable.",
)
@click.option(
    "--from",
    "from_host",
    metavar="HOST",
    shell_complete=completed("nodeset"),
    help="With --data: PATH is that host's; all others get it, past this machine.",
)
@click.option("--limit", metavar="RATE", help="With --data: what may leave its source, 100MB or 200mbit a second.")
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    metavar="DIR|REQUIREMENTS",
    help="Instead of code: install these wheels into every host's Python, offline.",
)
@click.option("--refresh", is_flag=True, help="With --wheels REQUIREMENTS: resolve and download again.")
@click.option(
    "--import-timeout",
    type=Limited(SyncWheels, "import_timeout"),
    default=SyncWheels.import_timeout,
    metavar="S",
    help="With --wheels: seconds that importing one of them may take on a host [120].",
)
@common_options
def sync(
    src: str | None,
    to: str | None,
    force: bool,
    force_only: tuple[str, ...],
    keep: bool,
    delete_excluded: bool,
    max_delete: int | Literal["all"] | None,
    all: bool,
    copy_unsafe_links: bool,
    source_id: str | None,
    yes: bool,
    data: tuple[str, ...],
    from_host: str | None,
    limit: str | None,
    wheels: Path | None,
    refresh: bool,
    import_timeout: float,
) -> int:
    """Make DEST's contents on every host what SRC's are (default: the current folder).

    What git lists is sent, less what .fleetignore names. Only what fleet delivered, and is as it was delivered, is ever
    deleted or replaced: what runs wrote there, checkpoints above all, stays. Where the source has changed and the
    node's own file is in the way, that host stops, unless you consent, or with --force or --keep. Files are staged,
    verified by sha256, then swapped in.

    --data PATH:DEST/ puts PATH inside DEST, PATH:DEST makes DEST that file or that folder's contents; PATH alone
    goes to the same path, a relative one below the host's workdir. Hosts receive and send on at once, so that many
    take as long as one. Interrupted and run again, it sends what is missing. It never deletes. With --from HOST, PATH
    is that host's, below its workdir when it is relative, and no byte of it comes here.

    Without any of these, what the inventory's `sync:` section names is carried: code, data, wheels, in that order. It
    asks before it first sends what lies outside the inventory's folder.
    """
    if data and (src is not None or to is not None or wheels is not None):
        raise UsageError(
            "--data does not go together with SRC, --to or --wheels", hint="--data PATH:DEST says where it goes"
        )
    if wheels is not None and (src is not None or to is not None):
        raise UsageError("--wheels does not go together with SRC or --to", hint="they go into each host's 'python'")
    if not data and (limit is not None or from_host is not None):
        raise UsageError("--limit and --from have a meaning with --data only")
    if (force_only or keep) and wheels is not None:
        raise UsageError("--force=PATTERN and --keep are for code and data: wheels replace no files")
    if (data or wheels is not None) and (delete_excluded or max_delete is not None or all or source_id):
        raise UsageError("--all, --delete-excluded, --max-delete and --source-id have a meaning for code only")
    if src is not None:
        Sync(src, to)  # before any host is looked up
    from fleet.cli.files.data import DataLine, show_data, show_wheels
    from fleet.ops.sync import Section, read_section

    inventory = load_inventory()
    theirs = src is None and to is None and not data and wheels is None and bool(inventory.sync)
    if theirs:
        section = read_section(inventory)
    else:
        section = Section(None if data or wheels else (Path(src or "."), to), data, wheels)
    if section == Section(None, (), None):
        raise InventoryError("the sync: section is empty", where=inventory.source, hint="for example: sync: {code: .}")
    if refresh and section.wheels is None:
        raise UsageError("--refresh has a meaning with --wheels only")
    of, quiet = the_fleet().plan, settings_of().silent
    parts: list[Part] = []
    if section.code is not None:
        source, dest = section.code
        plan = of.sync(
            source,
            dest,
            force=force or force_only,
            keep=keep,
            delete_excluded=delete_excluded,
            max_delete=max_delete,
            all=all,
            copy_unsafe_links=copy_unsafe_links,
            source_id=source_id,
        )
        parts.append(Part("code", plan, partial(ProgressLine, "sending", quiet=quiet), show, (source,)))
    if section.data:
        plan = of.sync_data(
            *section.data,
            limit=limit,
            from_host=from_host,
            force=force or force_only,
            keep=keep,
            copy_unsafe_links=copy_unsafe_links,
        )
        sources = tuple(Path(each["source"]) for each in plan.describe()["data"])
        parts.append(Part("data", plan, partial(DataLine, "receiving", quiet=quiet), show_data, sources))
    if section.wheels is not None:
        plan = of.sync_wheels(
            section.wheels,
            refresh=refresh,
            import_timeout=import_timeout,
            yes=yes and not theirs,
            force=force and not theirs,
        )
        parts.append(Part("wheels", plan, partial(ProgressLine, "sending", quiet=quiet), show_wheels))
    if theirs and not settings_of().dry_run:
        _ask_for(inventory, [source for part in parts for source in part.sources], agree=yes)
    return run_parts("sync", inventory.names, parts)


def _ask_for(inventory: Inventory, sources: Sequence[Path], *, agree: bool) -> None:
    """UsageError unless the user lets the inventory send what lies outside its folder; asked once for the same. agree:
    the command line does."""
    from fleet.ops.sync import agreed, outside, remember

    paths = outside(inventory.source, sources)
    if not paths or agreed(Path.home(), inventory.source, paths):
        return
    said = f"the sync: section sends what lies outside the inventory's folder: {', '.join(map(str, paths))}"
    yes = agree or ask(f"{inventory.source}: {said}. Send it?")
    if not yes:
        raise UsageError(
            said + ("" if yes is None else "; not agreed to"),
            where=inventory.source,
            hint="to send it: fleet sync --yes",
        )
    remember(Path.home(), inventory.source, paths)
