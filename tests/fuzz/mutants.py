"""Takes mends back, one at a time, and has the fuzzers look: `python -m tests.fuzz.mutants [--only NAME]`.

A mutant is a text of fleet/ and what stands there without the mend. The tree is copied for it. What was found must not
be there where the mend is: the same seed is run with the tree as it is, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MODEL, HOSTILE = "sync_model", "hostile"


class Mutant(NamedTuple):
    """case: of the issue, or a rule of the table. file: below fleet/. by: who is to find it."""

    name: str
    case: str
    file: str
    old: str
    new: str
    by: str = MODEL


MUTANTS: list[Mutant] = []


def applied(mutant: Mutant, root: Path = ROOT) -> str:
    """The file's text without the mend. ValueError where the text is not there, or more than once."""
    text = (root / "fleet" / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {text.count(mutant.old)} places in fleet/{mutant.file}, not one")
    return text.replace(mutant.old, mutant.new)


@contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fleet-mutant-"))
    try:
        for name in ("fleet", "tests"):
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            (folder / "fleet" / mutant.file).write_text(applied(mutant))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def look(folder: Path, by: str, *words: str, seconds: float) -> str:
    """What a fuzzer says of a tree."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{by}", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds + 300,
    )
    return done.stdout


def found(mutant: Mutant, seconds: float, seed: int) -> tuple[str, str]:
    """(a row's end, what the fuzzer said)."""
    with copied(mutant) as folder:
        said = look(folder, mutant.by, f"--seconds={seconds:g}", f"--seed={seed}", *shrink(mutant), seconds=seconds)
    match = re.search(r"^after ([\d.]+) s, seed (\d+): (.*)", said, re.MULTILINE)
    if not match:
        return "NOT FOUND", said
    took, number, what = match.groups()
    with copied(None) as folder:
        whole = look(folder, mutant.by, f"--one={number}", seconds=300)
    if "nothing is wrong" not in whole:
        return f"{took} s, seed {number}, which fails with the mend, too", said + whole
    return f"{took} s, seed {number}: {what[:90]}", said


def shrink(mutant: Mutant) -> list[str]:
    return ["--shrink=0"] if mutant.by == MODEL else []


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0, help="for each")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="begin with this one [by the clock]")
    parser.add_argument("--only", default="", help="those with it in their names")
    given = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        if given.only not in mutant.name:
            continue
        row, said = found(mutant, given.seconds, given.seed)
        missed += "seed" not in row or "too" in row
        print(f"{mutant.case:<8} {mutant.name:<34} {mutant.by:<10} {row}", flush=True)
        if "too" in row:
            print(said)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
