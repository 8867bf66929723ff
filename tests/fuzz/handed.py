"""What is handed to fleet runs nothing and chooses no path: `python -m tests.fuzz.handed [--seed N] [--one N]` draws a
folder (handed_world.py), has verbs work in it, as root and as a user, and watches what is executed and written
(traced.py): nothing but what handed_promises.py has of that verb. Each ends soon, in bounded memory, in words. It needs
root, for namespaces and owners."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.fuzz import hunting
from tests.fuzz.handed_promises import COMPLETE, PROMISES, Allowed, allowed, command, verbs, wrong_program
from tests.fuzz.handed_world import SECRET, USER, World
from tests.fuzz.traced import ROOT, Seen, prepare, run, shown

LIMIT_S = 120.0  # of a busy machine; what waits for a pipe waits for ever
CODES = {0, 1, 2, 121, 122, 123, 124, 130}  # docs/commands.md
STEPS = 3
SCRIPT = (Path(__file__).parents[2] / "tools/fleet").read_text()  # as the wheel has it
Tree = dict[str, tuple[object, ...]]


def tree(base: Path) -> Tree:
    """Returns what lies in a folder, but for what the tracer wrote."""
    found = dict[str, tuple[object, ...]]()
    for folder, folders, names in os.walk(base):
        if folder == str(base):
            folders[:] = [name for name in folders if name not in ("trace", "tmp", "marks")]
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            same = () if name in folders else (info.st_size, info.st_mtime_ns)
            link = os.readlink(path) if os.path.islink(path) else ""
            found[path] = (info.st_mode, info.st_uid, info.st_gid, info.st_ino, link, *same)
    return found


@cache
def is_open_to_others() -> bool:
    """Returns whether another user can run what is tried here: this tree and $TMPDIR are below no closed folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        look = [sys.executable, "-I", "-c", "import os, sys; [os.listdir(path) for path in sys.argv[1:]]"]
        try:
            return not subprocess.run(
                [*look, folder, str(ROOT)], cwd="/", user=USER, stderr=subprocess.DEVNULL
            ).returncode
        except PermissionError:
            return False


class Case:
    """A world, and some verbs in it, one after the other."""

    def __init__(self, base: Path, seed: int) -> None:
        self.world = World(base, seed)
        if not is_open_to_others():
            self.world.uid = 0
        (base / "bin").mkdir()
        (base / "bin/fleet").write_text(f"#!{sys.executable}\n{SCRIPT.partition(chr(10))[2]}")
        (base / "bin/fleet").chmod(0o755)
        self.world.make()
        self.commands = [(verb, command(self.world, verb)) for verb in verbs(self.world, STEPS)]
        prepare(base, {"root": (0, self.world.home), "ada": (USER, self.world.home)})
        path = [str(ROOT), ""] if self.world.open_path else [str(ROOT)]
        self.env = {
            "HOME": str(self.world.home),
            "TMPDIR": str(base / "tmp"),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": ":".join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_NO_INDEX": "1",
            "PIP_RETRIES": "0",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }

    def play(self) -> tuple[str, list[str], Seen] | None:
        """Returns the command after which something was wrong, what, and what was seen of it."""
        for verb, words in self.commands:
            may, before = allowed(self.world, verb, words), tree(self.world.base)
            argv, env = [str(self.world.base / "bin/fleet")], self.env
            if verb == COMPLETE:
                line = " ".join(["fleet", *words[words.index(verb) + 1 :], ""])
                asked = {"COMP_HEAD": line, "COMP_LINE": line, "COMP_WORD": ""}
                env = {**env, **asked, "_FLEET_COMPLETE": "bash_complete"}
            else:
                argv += words
            seen = run(self.world.base, self.world.cwd, argv, env, self.world.uid, LIMIT_S)
            if wrong := [*self.wrong(verb, seen), *self.written(seen, may, before)]:
                return shown(["fleet", *words]), wrong, seen
        return None

    def wrong(self, verb: str, seen: Seen) -> Iterator[str]:
        """Yields what is wrong with what ran, and with how it ended."""
        yield from (f"{name} ran" for name in os.listdir(self.world.marks))
        for program, argv in seen.executed:
            if (why := wrong_program(self.world, verb, program, argv)) is not None:
                yield f"{why}: {shown([program, *argv])}"
        text = seen.out + seen.err
        if seen.code is None:
            yield f"no end within {LIMIT_S:g} s"
        elif seen.code not in CODES and not self.is_shut(text):
            yield f"exit code {seen.code}"
        if seen.left and not PROMISES[verb].leaves:
            yield "it left a process behind"
        if "Traceback (most recent call last)" in text or "a fault in fleet itself" in text:
            yield "a traceback"
        if "MemoryError" in text or "File too large" in text:
            yield "without bounds"
        if SECRET in text:
            yield "it told the secret"

    def written(self, seen: Seen, may: Allowed, before: Tree) -> Iterator[str]:
        """Yields what was written, and is in no promise."""
        for path, call in seen.wrote.items():
            of_python = "/__pycache__" in path and not path.startswith(str(self.world.base))
            if not of_python and not may.has(path):
                yield f"it wrote {path}: {call[:300]}"
        after = tree(self.world.base)
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        yield from (f"it changed {path}" for path in sorted(changed - {*seen.wrote}) if not may.has(path))

    def is_shut(self, text: str) -> bool:
        """Whether its user may not write to the handed folder, and was told so."""
        info = self.world.cwd.stat()
        shut = self.world.uid and info.st_uid != self.world.uid and not info.st_mode & 0o002
        return bool(shut and re.search(r"error: this machine: [^/]*: Permission denied", text))


def one(seed: int, counts: collections.Counter[str] | None = None) -> str | None:
    """Returns what is wrong with a seed, in words."""
    base = Path(tempfile.mkdtemp(prefix="fleet-handed-"))
    base.chmod(0o755)
    try:
        case = Case(base, seed)
        if counts is not None:
            counts.update(verb for verb, _ in case.commands)
        found = case.play()
        if found is None:
            return None
        line, wrong, seen = found
        said = [f"    {text!r}" for text in (seen.err or seen.out).strip().splitlines()[-4:]]
        who = "root" if not case.world.uid else "a user"
        head = f"seed {seed}: {line} as {who} (code {seen.code}, {seen.seconds:.1f} s): {'; '.join(wrong[:4])[:1500]}"
        drew = f"    drawn: {', '.join(case.world.drew)}"[:1500]
        return "\n".join([head, drew, *said, f"    again: .venv/bin/python -m tests.fuzz.handed --one={seed}"])
    finally:
        shutil.rmtree(base, ignore_errors=True)


def hunt(first: int, seconds: float, most: int = 1, say: hunting.Say = print, count: int = 0) -> list[str]:
    """Cases from a seed on, for so long, or so many, or until so many faults are found."""
    counts = collections.Counter[str]()
    found, tried = hunting.hunt(lambda seed: one(seed, counts), first, seconds, most, say, count)
    drawn = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    say(f"handed: {tried}: {drawn}; {len(found)} faults")
    return found


def main() -> int:
    parser = hunting.parser()
    parser.add_argument("--count", type=int, default=0, help="so many seeds at most")
    given = parser.parse_args()
    return hunting.run(given, one, lambda first, say: hunt(first, given.seconds, given.faults, say, given.count))


if __name__ == "__main__":
    sys.exit(main())
