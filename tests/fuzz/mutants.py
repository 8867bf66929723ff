"""Takes mends back, one at a time, and has the fuzzers look, or tests: `python -m tests.fuzz.mutants [--only NAME]`.

A mutant is a text of fleet/ and what stands there without the mend. The tree is copied for it, with an interpreter of
its own. What was found must not be there where the mend is: the same seed is run with the tree as it is, too.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import mends
from tests.fuzz.rule import mends as of_the_rule
from tests.fuzz.runs.mends import ABOUT, MENDS

ROOT = Path(__file__).parents[2]
MODEL, HOSTILE, RUNS, RULE, HANDED = "sync_model", "hostile", "runs", "rule", "handed"
TREE = ("fleet", "tests", "tools", "hostfiles", "playbooks", "examples")
MOST = 99  # faults that the tree has with the mend, too, before one is found that it has not


class Mutant(NamedTuple):
    """case: of the issue, or a rule of the table. file: below fleet/. by: the fuzzer that is to find it, or the file of
    tests. also: (file, old, new) of a second line of defence."""

    name: str
    case: str
    file: str
    old: str
    new: str
    by: str = MODEL
    also: tuple[str, str, str] | None = None


NODE, GET = "node/delivery/", "ops/get/"
COMPARE, COMMIT, CODE_SYNC = NODE + "compare.py", NODE + "commit.py", NODE + "code_sync.py"
DELETING = NODE + "deleting.py"
MUTANTS = [
    Mutant(
        "a source that is the destination",
        "1",
        NODE + "target.py",
        "    while mark is not None:\n",
        "    while mark is not None and False:\n",
    ),
    Mutant("ignored is not gone", "2", DELETING, "elif path in excluded:", "elif False:"),
    Mutant(
        "seen is not delivered",
        "3",
        COMPARE,
        "status = before[STATUS] if before and path not in self.seen else SEEN",
        "status = DELIVERED",
    ),
    Mutant("what get brought is known", "3", GET + "place.py", "brought.record_files(self.to, files)", "pass"),
    Mutant("what get brought stays here", "3", "delivery/tree.py", "fetched = unchanged(root)", "fetched = set[str]()"),
    Mutant(
        "own files are in the way",
        "4",
        COMPARE,
        "(self.doubts if unsure else self.own)[path] = entry",
        'self.put(entry, st, kind == "f")',
    ),
    Mutant("own files are not deleted", "table", DELETING, "elif status == DELIVERED and not", "elif not"),
    Mutant(
        "links are compared by where they lead",
        "4",
        NODE + "ownership.py",
        'unchanged(row, st) and (row[KIND] != "l" or self.target(path) == row[LINK])',
        "unchanged(row, st)",
    ),
    Mutant(
        "destinations in each other",
        "4",
        NODE + "ownership.py",
        "found = (self.match(known.get(inside, []), path, st, written) for known in self.others[at])",
        "found = iter(())",
    ),
    Mutant(
        "another source's link and folder",
        "4",
        DELETING,
        "replaced = sum(comparison.loses(path) for path in comparison.changed)",
        "replaced = sum(comparison.found[path] is not None for path in comparison.needed)",
    ),
    Mutant(
        "another source's, which was killed",
        "4",
        CODE_SYNC,
        "DELIVERED, e[4], 0] for e in changed], source)",
        "DELIVERED, e[4], 0] for e in changed])",
    ),
    Mutant(
        "get asks before it replaces",
        "5",
        GET + "place.py",
        "if info is not None and not self._may_go(entry, info, known) and path not in self.agreed:",
        "if info is not None and not self._may_go(entry, info, known) and False:",
    ),
    Mutant(
        "what get brought and somebody edited",
        "5",
        "delivery/brought.py",
        "return next((Got(*now, *each[4:]) for each in alike if each.sha256 == digest), None)",
        "return next(iter(known), None)",
    ),
    Mutant(
        "git decides what it tracks",
        "7",
        "delivery/ignore.py",
        "why = None if known else self._ignored(path, folder, child)",
        "why = self._ignored(path, folder, child) or repository.ignores(full, folder)",
    ),
    Mutant(
        ".fleetignore acts last",
        "rule 3",
        "delivery/ignore.py",
        "if fleets is not None and not fleets.negated:",
        "if fleets is not None and not fleets.negated and path not in repository.tracked:",
    ),
    Mutant(
        "times as the node's file system keeps them",
        "10",
        COMPARE,
        "if row is not None and same_source(row, entry):",
        "if False:",
    ),
    Mutant(
        "a destination in its source",
        "13",
        "delivery/mirror.py",
        'if tree.why(hello["path"], "d") is None:',
        "if False:",
    ),
    Mutant("setgid on folders", "13", COMPARE, "0o777 | entry[MODE] & stat.S_ISGID", "0o777"),
    Mutant(
        "what is replaced is put aside", "rule 1", COMMIT, "        for path in paths:\n", "        for path in ():\n"
    ),
    Mutant(
        "what was left is not asked about again",
        "table",
        COMPARE,
        "if path in self.fetched or before is not None and not (unsure and not before[DIGEST] or self.is_forced(path))",
        "if path in self.fetched",
        also=(
            COMPARE,
            "                self.owner.journal.row(entry) is not None\n                or digest in {",
            "                digest in {",
        ),
    ),
    Mutant(
        "--keep remembers this version of the source",
        "table",
        COMPARE,
        "            elif path in keep:\n                self.left.add(path)\n",
        "            elif path in keep:\n",
    ),
    Mutant(
        "a folder with something of its own",
        "table",
        DELETING,
        "            if comparison.holding[path]:\n",
        "            if False:\n",
    ),
    Mutant(
        "a commit is written down first",
        "rule 9",
        CODE_SYNC,
        'journal.begin([[*e, comparison.come.get(e[0], ""), DELIVERED, e[4], 0] for e in changed], source)',
        "pass",
    ),
    Mutant(
        "an edit that keeps size and time",
        "rule 9",
        NODE + "journal.py",
        "            and row[NODE_CTIME] in (0, st.st_ctime_ns)\n",
        "",
    ),
    Mutant(
        "a get of a node that gets nowhere",
        "14",
        GET + "listed.py",
        "cancel=cancel, watchdog=Watchdog(clock=program.clock))",
        "cancel=cancel)",
        HOSTILE,
    ),
    Mutant(
        "a sync of a node that gets nowhere",
        "14",
        "delivery/conversation.py",
        "cancel=runtime.cancel, watchdog=self.watchdog",
        "cancel=runtime.cancel",
        HOSTILE,
    ),
    Mutant(
        "a get is called what was asked for",
        "15",
        GET + "__init__.py",
        'answers[host].name if flat else f"{host}/{answers[host].name}"',
        "tree.root.name",
        HOSTILE,
        (
            GET + "listed.py",
            "mismatch = bool(parts) and parts != list(tree.root.parts)[-len(parts) :]",
            "mismatch = False",
        ),
    ),
    Mutant(
        "no repository comes along",
        "15",
        GET + "listed.py",
        "(tree.entries, []) if everything else without_repositories(tree.entries)",
        "(tree.entries, list[str]())",
        HOSTILE,
    ),
    Mutant(
        "a hostname is a comment of one line",
        "16",
        "inventory/write.py",
        'return [f"# {printable(remark, REMARK)}"] if remark else []',
        'return [f"# {remark}"] if remark else []',
        HOSTILE,
        (
            "ops/init/choose.py",
            "if wrong or (found.env, found.groups, found.sync) != (meant.env, meant.groups, meant.sync):",
            "if False:",
        ),
    ),
    Mutant(
        "an address that is none",
        "14",
        "protocol/messages/facts.py",
        '"addresses": list[OwnAddress]',
        '"addresses": list[str]',
        HOSTILE,
    ),
    Mutant(
        "a run's id has one form",
        "19",
        "protocol/messages/run.py",
        "RunId = Annotated[str, is_run_id]",
        "RunId = str",
        HOSTILE,
    ),
]

MUTANTS += [
    Mutant(
        "fleet's own processes read nothing here",
        "42.1",
        "own_process.py",
        '[sys.executable, "-I", "-c", BOOT],\n        cwd="/",',
        '[sys.executable, "-c", BOOT],',
        HANDED,
    ),
    Mutant(
        "git starts no program of a repository",
        "42.1",
        "delivery/git.py",
        '("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=keep")',
        '("-c", "core.untrackedCache=keep")',
        HANDED,
    ),
    Mutant(
        "a file of a run is no link",
        "42.4",
        "own.py",
        "open_regular(str(path), os.O_NOFOLLOW)",
        "open_regular(str(path))",
        HANDED,
    ),
    Mutant(
        "nothing is packed through a link",
        "42.4",
        "ops/pack.py",
        "replace_file(os.fsencode(file), data.getvalue(), 0o777)",
        "file.write_bytes(data.getvalue())",
        HANDED,
    ),
    Mutant("what is ignored has bounds", "42.4", "delivery/patterns.py", "own.bounded(file)", "file.read()", HANDED),
]
MUTANTS += [Mutant(*mend[:5], RUNS, *mend[5:]) for mend in MENDS]
MUTANTS += [Mutant(*mend, RULE) for mend in of_the_rule.MENDS]
MUTANTS += [Mutant(*mend) for mend in mends.MENDS]
LEFT = {"runs", "build", "builds", "dist"}  # what is made in a clone
MOST_MEMORY = 4 << 30  # bytes, of a mutant that reads without end


def applied(mutant: Mutant) -> dict[str, str]:
    """File -> its text without the mend. ValueError where the text is not there, or more than once."""
    texts: dict[str, str] = {}
    for name, old, new in [mutant[2:5], *([mutant.also] if mutant.also else [])]:
        text = texts.get(name) or (ROOT / "fleet" / name).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name}: {text.count(old)} places in fleet/{name}, not one")
        texts[name] = text.replace(old, new)
    return texts


@contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fleet-mutant-"))
    try:
        folder.chmod(0o755)  # another user is to run it
        for path in ROOT.iterdir():
            if path.is_dir() and path.name[0] != "." and path.name not in LEFT:
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, folder / path.name, symlinks=True, ignore=ignore)
            elif path.is_file():
                shutil.copy(path, folder)
        for name, text in applied(mutant).items() if mutant is not None else ():
            (folder / "fleet" / name).write_text(text)
        an_interpreter(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def an_interpreter(folder: Path) -> None:
    """Makes .venv of a tree: it and its `fleet` import that tree, whatever the environment is, and else what this
    interpreter does."""
    bin_, packages = folder / ".venv/bin", folder / f".venv/lib/python{sysconfig.get_python_version()}/site-packages"
    bin_.mkdir(parents=True)
    packages.mkdir(parents=True)
    (packages / "tree.pth").write_text(f"{folder}\n{sysconfig.get_path('purelib')}\n")
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder / ".venv")
    for standin in Path(sys.prefix).glob("standin-*"):
        (folder / ".venv" / standin.name).symlink_to(standin)
    (bin_ / "python").symlink_to(os.path.realpath(sys.executable))
    (bin_ / "fleet").write_text((folder / "tools/fleet").read_text().replace("#!python", f"#!{bin_}/python", 1))
    (bin_ / "fleet").chmod(0o755)


def look(folder: Path, by: str, *words: str) -> Iterator[str]:
    """What a fuzzer says of a tree, as it says it. Who has heard enough ends it."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [str(folder / ".venv/bin/python"), "-m", *([by] if by == "pytest" else [f"tests.fuzz.{by}"]), *words]
    with subprocess.Popen(
        argv,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY)),
    ) as process:
        try:
            assert process.stdout
            yield from process.stdout
        finally:
            process.send_signal(signal.SIGINT)


def is_well(folder: Path, mutant: Mutant, seed: str) -> bool:
    verb = [f"--verb={mends.VERB[mutant.name]}"] if mutant.name in mends.VERB else []
    return any("nothing is wrong" in said for said in look(folder, mutant.by, f"--one={seed}", *verb))


def found_by_tests(mutant: Mutant, seconds: float) -> tuple[str, str]:
    """(a row's end, what pytest said). A test that fails with the mend, too, has found nothing."""
    began = time.monotonic()
    with copied(mutant) as folder, copied(None) as whole:
        said, failed = tried(folder, mutant.by, seconds)
        took = f"{time.monotonic() - began:.1f} s"
        if failed is None:
            return "NOT FOUND", said
        if tried(whole, failed, seconds)[1] is not None:
            return f"{took}, {failed}, which fails with the mend, too", said
    return f"{took}, {failed.rpartition('::')[2][:90]}", said


def tried(folder: Path, tests: str, seconds: float) -> tuple[str, str | None]:
    """(what pytest said, the first test that failed or did not end)."""
    until, lines = time.monotonic() + seconds, list[str]()
    for line in look(folder, "pytest", "-x", "-v", "-p", "no:cacheprovider", "-p", "no:xdist", tests):
        lines.append(line)
        if time.monotonic() > until:
            break
    failed = [line[7:].partition(" - ")[0].strip() for line in lines if line.startswith("FAILED ")]
    failed += [line.partition(" ")[0] for line in lines if line.startswith("tests/") and "::" in line][-1:] * any(
        "+ Timeout +" in line for line in lines
    )
    return "".join(lines), failed[0] if failed else None


def found(mutant: Mutant, seconds: float, seed: int) -> tuple[str, str]:
    """(a row's end, what was said). Of what a fuzzer found the first that is not there with the mend."""
    if mutant.by.endswith(".py"):
        return found_by_tests(mutant, seconds)
    row, lines = "NOT FOUND", list[str]()
    with copied(mutant) as folder, copied(None) as whole:
        for line in look(folder, mutant.by, f"--seconds={seconds:g}", f"--seed={seed}", *options(mutant)):
            lines.append(line)
            if match := re.match(r"after ([\d.]+) s, seed (\d+): (.*)", line):
                took, number, what = match.groups()
                if is_well(whole, mutant, number) and not (mutant.by == RUNS and is_well(folder, mutant, number)):
                    return f"{took} s, seed {number}: {what[:90]}", "".join(lines)
                row = f"{took} s, seed {number}, which fails with the mend, too, or not always"
    return row, "".join(lines)


def options(mutant: Mutant) -> list[str]:
    about = [f"--about={ABOUT[mutant.name]}"] if mutant.name in ABOUT else []
    about += [f"--verb={mends.VERB[mutant.name]}"] if mutant.name in mends.VERB else []
    return {MODEL: ["--shrink=0"], HANDED: [f"--faults={MOST}"], RUNS: [f"--most={MOST}", *about]}.get(mutant.by, about)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0, help="for each")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="begin with this one [by the clock]")
    parser.add_argument("--only", default="", help="those with it in their names")
    parser.add_argument("--by", default="", help="those that this fuzzer is to find")
    given = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        if given.only not in mutant.name or given.by not in mutant.by:
            continue
        row, said = found(mutant, given.seconds, given.seed)
        missed += "NOT FOUND" in row or "with the mend, too" in row
        by = mutant.by.removeprefix("tests/unit/")
        print(f"{mutant.case:<8} {mutant.name:<54} {by:<24} {row}", flush=True)
        if "with the mend, too" in row:
            print(said)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
