"""Runs `fleet sync [SRC] [--to DEST]`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from fleet.answers.sync import Mirrored, Synced
from fleet.cli.context import Part, ask, perform, run_parts, the_fleet
from fleet.cli.files.data import DataLine, show_data, show_image, show_wheels, warn_of_own, warn_of_source
from fleet.cli.inventory import load_inventory
from fleet.cli.line.command import FleetOption, Verb, completed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import common_options, request_options
from fleet.cli.screen.output import clean, detail, fold, groups_by, inform, write_grouped
from fleet.cli.screen.progress import ProgressLine
from fleet.errors import InventoryError, UsageError
from fleet.model import Inventory, Report, Result
from fleet.node.facts.runtimes import file_runtime
from fleet.requests.sync import CODE, DATA, IMAGES, OWN, WHEELS, Sync, SyncData, SyncImage, SyncWheels
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
    """Prints a line for each group of hosts with the same result, then warnings about files that were not changed."""
    done, whole = [r for r in report.results if r.ok], report.read(Mirrored)
    write_grouped(done, _line)
    for kept, names in groups_by(done, lambda r: tuple(r.read(Synced).kept or ())).items():
        for path in kept:
            inform(f"warning: host {fold(names)}: kept {clean(path)}: gone from the source, but changed on the node")
    warn_of_own((r.host, r.read(Synced)) for r in done)
    if done and not whole.entries:
        inform(f"warning: {clean(whole.source)} holds nothing to carry")
    if whole.ignored:
        detail(clean(whole.ignored))
    warn_of_source(whole)


class SyncVerb(Verb):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads --force=PATTERN as --force-only. A plain --force takes no value: the next argument may be SRC."""
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
        "fleet sync --image train:1",
        "fleet sync --wheels requirements.txt",
    ),
    sections=(CODE, OWN, DATA, IMAGES, WHEELS, "Questions"),
)
@click.argument("src", required=False, shell_complete=completed("file"))
@request_options(Sync, "to", "force")
@click.option(
    "--force-only",
    cls=FleetOption,
    section=OWN,
    metavar="PATTERN",
    multiple=True,
    help="The same as --force=PATTERN: replace a node's own files that it names; repeatable.",
)
@request_options(Sync, "keep", "delete_excluded", "max_delete", "all", "copy_unsafe_links", "source_id")
@request_options(SyncWheels, "yes")
@request_options(SyncData, "data", "from_host", "limit")
@request_options(SyncImage, "image")
@click.option(
    "--wheels",
    cls=FleetOption,
    section=WHEELS,
    type=click.Path(path_type=Path),
    metavar="DIR|REQUIREMENTS",
    help="Instead of code: install these wheels into every host's Python, offline.",
)
@request_options(SyncWheels, "refresh", "import_timeout")
@common_options
def sync(
    src: str | None,
    to: str | None,
    force: bool,
    force_only: tuple[str, ...],
    keep: bool,
    yes: bool,
    data: tuple[str, ...],
    image: str | None,
    wheels: Path | None,
    refresh: bool,
    **given: Any,
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

    --image NAME saves an image of this machine's podman or docker once, FILE.tar is such an archive; hosts that lack
    it receive it as data, load it, and are compared by its id. A .sif or .sqsh file goes as data.

    Without any of these, what the inventory's `sync:` section names is carried: code, data, wheels, in that order. It
    asks before it first sends what lies outside the inventory's folder.
    """
    of_code = {name: given[name] for name in ("delete_excluded", "max_delete", "all", "source_id")}
    if image is not None:
        own = given["copy_unsafe_links"], yes, force, force_only, keep, refresh, *of_code.values()
        if any(value not in (None, False, ()) for value in (src, to, data, wheels, *own)):
            raise UsageError("--image goes with --limit and --from alone", hint="sync the rest by another command")
        shown, limit, origin = show_data if file_runtime(image) else show_image, given["limit"], given["from_host"]
        return perform(
            lambda fleet: fleet.plan.sync_image(image=image, limit=limit, from_host=origin), shown, line=DataLine()
        )
    if data and (src is not None or to is not None or wheels is not None):
        raise UsageError(
            "--data does not go together with SRC, --to or --wheels", hint="--data PATH:DEST says where it goes"
        )
    if wheels is not None and (src is not None or to is not None):
        raise UsageError("--wheels does not go together with SRC or --to", hint="they go into each host's 'python'")
    if (force_only or keep) and wheels is not None:
        raise UsageError("--force=PATTERN and --keep are for code and data: wheels replace no files")
    if (data or wheels is not None) and any(value is not None and value is not False for value in of_code.values()):
        raise UsageError("--all, --delete-excluded, --max-delete and --source-id have a meaning for code only")
    if src is not None:
        Sync(src, to)  # its checks come before any host is looked up
    from fleet.delivery.chain.transfer import Broadcast
    from fleet.ops.sync import Section, read_section

    inventory = load_inventory()
    theirs = src is None and to is None and not data and wheels is None and bool(inventory.sync)
    typed = Section(None if data or wheels else (Path(src or "."), to), data, wheels)
    section = read_section(inventory) if theirs else typed
    if section == Section(None, (), None):
        raise InventoryError("the sync: section is empty", where=inventory.source, hint="for example: sync: {code: .}")
    if not section.data and (given["limit"] is not None or given["from_host"] is not None):
        raise UsageError("--limit and --from have a meaning with --data only")
    if refresh and section.wheels is None:
        raise UsageError("--refresh has a meaning with --wheels only")
    if section.wheels is None and given["import_timeout"] != SyncWheels.import_timeout:
        raise UsageError("--import-timeout has a meaning with --wheels only", hint="leave out --import-timeout")
    if given["copy_unsafe_links"] and section.code is None and not section.data:
        raise UsageError("--copy-unsafe-links is for code and data, not for --wheels", hint="leave one of the two out")
    of, sending = the_fleet().plan, partial(ProgressLine, "sending")
    consent = {"force": force or force_only, "keep": keep, "copy_unsafe_links": given["copy_unsafe_links"]}
    parts: list[Part] = []
    if section.code is not None:
        source, dest = section.code
        plan = of.sync(source, dest, **of_code, **consent)
        parts.append(Part("code", plan, sending, show, (source,)))
    if section.data:
        plan = of.sync_data(*section.data, limit=given["limit"], from_host=given["from_host"], **consent)
        assert isinstance(plan.plan, Broadcast)
        sources = tuple(item.source for item in plan.plan.items)
        parts.append(Part("data", plan, DataLine, show_data, sources))
    if section.wheels is not None:
        plan = of.sync_wheels(
            section.wheels,
            refresh=refresh,
            import_timeout=given["import_timeout"],
            yes=yes and not theirs,
            force=force and not theirs,
        )
        parts.append(Part("wheels", plan, sending, show_wheels))
    if theirs and not settings_of().dry_run:
        _ask_for(inventory, [source for part in parts for source in part.sources], agree=yes)
    return run_parts("sync", inventory.names, parts)


def _ask_for(inventory: Inventory, sources: Sequence[Path], *, agree: bool) -> None:
    """Raises UsageError unless the user allows the inventory to send paths outside its folder. A yes is remembered for
    these paths. agree: the command line has --yes."""
    from fleet.ops.sync import agreed, outside, remember

    paths = outside(inventory.source, sources)
    if not paths or agreed(Path.home(), inventory.source, paths):
        return
    text = f"the sync: section sends what lies outside the inventory's folder: {', '.join(map(str, paths))}"
    yes = agree or ask(f"{inventory.source}: {text}. Send it?")
    if not yes:
        raise UsageError(
            text + ("" if yes is None else "; not agreed to"),
            where=inventory.source,
            hint="to send it: fleet sync --yes",
        )
    remember(Path.home(), inventory.source, paths)
