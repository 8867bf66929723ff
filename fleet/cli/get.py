"""`fleet get RUN|PATH`"""

from __future__ import annotations

from pathlib import Path

import click

from fleet.cli.command import Verb, completed
from fleet.cli.context import perform
from fleet.cli.data import DataLine
from fleet.cli.options import common_options, settings_of
from fleet.cli.output import clean, write_grouped
from fleet.model import Report, Result
from fleet.rules.units import counted, size_text


@click.command("get", cls=Verb, examples=("fleet get checkpoints/last.pt", "fleet get latest --to results"))
@click.argument("what", metavar="RUN|PATH")
@click.option(
    "--from", "sources", metavar="NODESET", shell_complete=completed("nodeset"), help="From these hosts only."
)
@click.option(
    "--to", type=click.Path(path_type=Path, file_okay=False), default=Path("."), metavar="DIR", help="Where to [here]."
)
@common_options
def get(what: str, sources: str | None, to: Path) -> int:
    """Bring files of the hosts here: a PATH, relative to the host's workdir, or what a RUN wrote in its folder since it
    began. A word without a '/' is a run if there is one.

    Where one host has it, it comes as it is; else each host has a folder of its own. All is verified by digest; an
    interrupted get goes on where it ended.
    """
    line = DataLine("receiving", quiet=settings_of().silent)
    return perform(lambda fleet: (fleet.select(sources) if sources else fleet).plan.get(what, to=to), show, line=line)


def show(report: Report) -> None:
    def told(result: Result) -> str:
        if not result.data["to"]:
            return "has none of it"
        size = f"{counted(result.data['files'], 'file')}, {size_text(result.data['bytes'])}"
        return f"{size}, in {clean(result.data['to'])}"

    write_grouped((result for result in report.results if result.ok), told)
