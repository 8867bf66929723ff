"""`make foreign`: programs that nobody here wrote, each by hand with its own launcher and then by fleet, in a lab.

    python -m tests.foreign [--only NAME[,NAME...]] [--list]

Prints a row a program, as Markdown, and exits 1 unless all are alike but for differences with a reason. NAME is a
part of a program's name, or a launcher. Some programs race with themselves, by hand too: gloo's threads abort now and
then as the interpreter ends. So each has three tries, and the row names how many it took.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.foreign.compare import Difference, differences
from tests.foreign.packages import NoPackage, fetched
from tests.foreign.program import Program
from tests.foreign.programs import PROGRAMS
from tests.foreign.sides import Lab, Outcome
from tests.lab.virtual_lab import labs

TRIES = 3


class Folders:
    """Temporary ones, as labs() wants them from pytest."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def mktemp(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=name, dir=self.base))


@contextmanager
def foreign_lab() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fleet-foreign.", ignore_cleanup_errors=True) as base:
        made = labs(Folders(Path(base)), prefix="f")  # type: ignore[arg-type]
        try:
            yield Lab(next(made)(2))
        finally:
            next(made, None)  # takes the lab down


def both(lab: Lab, program: Program) -> tuple[Outcome, Outcome, list[Difference]]:
    with tempfile.TemporaryDirectory(prefix="fleet-foreign.") as folder:
        hand, fleet = lab.by_hand(program), lab.by_fleet(program, Path(folder))
    return hand, fleet, differences(program, hand, fleet)


def cell(outcome: Outcome) -> str:
    size = sum(len(text) for streams in outcome.logs.values() for text in streams)
    wrote = sum(len(found) for found in outcome.files.values())
    return f"exit {outcome.code}, {len(outcome.logs)} ranks, {size} bytes, {wrote} files, {outcome.seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make foreign", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME", help="programs with this in their names, by comma")
    parser.add_argument("--list", action="store_true", help="names, launchers and where each is from")
    args = parser.parse_args()
    parts = args.only.split(",")
    programs = [p for p in PROGRAMS if any(part in p.name or part == p.launcher for part in parts)]
    if args.list:
        for program in programs:
            print(
                f"{program.name:38} {program.launcher:11} {'public' if program.public else 'shape'}  {program.origin}"
            )
        return 0
    try:
        for name in sorted({program.package for program in programs if program.package}):
            fetched(name)
    except NoPackage as error:
        print(f"error: programs of others are not to be had: {error}", file=sys.stderr)
        return 1
    print("| program | launcher | by hand | by fleet | difference |\n| --- | --- | --- | --- | --- |", flush=True)
    unknown = 0
    with foreign_lab() as lab:
        for program in programs:
            hand, fleet, found = both(lab, program)
            tries = 1
            while tries < TRIES and not all(difference.why for difference in found):
                (hand, fleet, found), tries = both(lab, program), tries + 1
            unknown += not all(difference.why for difference in found)
            what = "<br>".join(str(each).replace("|", "\\|").replace("\n", " ") for each in found) or "none"
            what += f" (try {tries})" * (tries > 1)
            where = f"{program.launcher}, {program.nodes}x{program.ranks}"
            print(f"| {program.name} | {where} | {cell(hand)} | {cell(fleet)} | {what} |", flush=True)
    print(
        f"\n{len(programs)} programs, {sum(p.public for p in programs)} of them public and unmodified, {unknown} unlike"
    )
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
