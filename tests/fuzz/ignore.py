"""What is sent of a folder, held against git: trees, patterns, repositories in each other, drawn by a seed.

python -m tests.fuzz.ignore [SECONDS [SEED]]: prints the seed of each case that fails, and how many there were. A case
compares, never git's list with itself:

- patterns.py, in a walk that knows what is tracked, with `git ls-files` in each repository;
- the same with git hidden (no PATH to it), where nothing is tracked;
- why() of paths, there or not, with `git check-ignore --no-index`;
- .fleetignore with `git ls-files --exclude=PATTERN...`, which comes last in git, too, and where it brings something
  back with a plain reading of the rule.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.delivery import ignore
from fleet.delivery.git import Repository
from fleet.delivery.ignore import SourceRules
from fleet.delivery.tree import read
from fleet.errors import UsageError

NAMES = (
    "a",
    "b",
    "ab",
    "abc",
    "data",
    "x.py",
    "y.o",
    "z.yaml",
    "A",
    "é",
    "s p",
    "t ",
    "#h",
    "!n",
    "[x]",
    "q\\s",
    "n\nl",
    "-d",
)
ATOMS = (
    "a",
    "b",
    "ab",
    "abc",
    "data",
    "x.py",
    "*.py",
    "*.o",
    "*.yaml",
    "*",
    "**",
    "***",
    "?",
    "??",
    "a*",
    "*b",
    "a**",
    "**b",
    "a*c",
    "*a*b*",
    "**/a*/**/*b*",
    "*" + "a*" * 16 + "z",
)
ODD = (
    "",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-c]*",
    "[]x]",
    "[[:alpha:]]",
    "[[:upper:][:digit:]]*",
    "[z-a]",
    "[a",
    "[[:no:]]",
    "[\\x-\\z].py",
)
MORE = (
    "é",
    "?é",
    "??",
    "s p",
    "s\\ p",
    "t ",
    "t\\ ",
    "\\#h",
    "#h",
    "\\!n",
    "!n",
    "\\[x\\]",
    "q\\\\s",
    "q\\",
    "\\a",
    "\\*",
    "-d",
    "A",
)
FORMS = (
    "*\n!*/\n!*.py",
    "**\n!**/\n!*.py",
    "/**\n!/**/\n!*.py",
    "data/**\n!data/**/\n!data/**/*.yaml",
    "*\n!.gitignore",
)
ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C", "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "e@x"}
ENVIRONMENT |= {"GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "e@x"}


def git(folder: Path | str, *words: str, data: str = "", ok: tuple[int, ...] = (0,)) -> list[str]:
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", "-C", str(folder), *words],
        input=os.fsencode(data),
        capture_output=True,
        env={**ENVIRONMENT, "HOME": os.environ["HOME"]},
        timeout=60,
        check=False,
    )
    assert done.returncode in ok, (words, done.stderr)
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


class Draw(random.Random):
    """What a case is made of."""

    def pattern(self, fleet: bool = False) -> str:
        if self.random() < 0.08:
            return self.choice(FORMS)
        parts = [self.choice(self.choice((ATOMS, ATOMS, ODD, MORE))) for _ in range(self.choice((1, 1, 1, 2, 2, 3)))]
        text = "/".join(parts)
        text = ("!" if self.random() < 0.35 else "") + ("/" if self.random() < 0.25 else "") + text
        text += "/" if self.random() < 0.3 else ""
        return text + self.choice(("", "", "", "", " ", "  ", "\t", "\r") if not fleet else ("",))

    def patterns(self, fleet: bool = False) -> str:
        end = "\n" if self.random() < 0.9 else ""
        return (
            ("\ufeff" if self.random() < 0.1 else "")
            + "\n".join(self.pattern(fleet) for _ in range(self.randint(1, 5)))
            + end
        )

    def tree(self, folder: Path, depth: int = 0) -> None:
        for name in self.sample(NAMES, self.randint(1, 5)):
            path = folder / name
            chance = self.random()
            if chance < 0.45 and depth < 4:
                path.mkdir()
                if self.random() < 0.9:
                    self.tree(path, depth + 1)
            elif chance < 0.5:
                path.symlink_to(self.choice(("a", "..", "/nowhere")))
            else:
                path.touch()
        if self.random() < (0.7 if depth == 0 else 0.2):
            (folder / ".gitignore").write_text(self.patterns(), newline="")
        elif self.random() < 0.03:
            (folder / ".gitignore").mkdir()
        elif self.random() < 0.03:  # to git a link is none
            (folder / "patterns").write_text(self.patterns())
            (folder / ".gitignore").symlink_to("patterns")

    def repository(self, top: Path, depth: int = 0) -> None:
        git(top, "init", "-q")
        if self.random() < 0.3:
            (top / ".git/info/exclude").write_text(self.patterns(), newline="")
        folders = [path for path in all_below(top) if path.is_dir() and not path.is_symlink()]
        adds = self.random() < 0.5
        if depth < 2:
            for path in self.sample(folders, min(len(folders), self.choice((0, 0, 1, 2)))):
                self.repository(path, depth + 1)
                # without a commit git takes in what is in it, as no repository
                if (adds or self.random() < 0.5) and not git(path, "rev-parse", "-q", "--verify", "HEAD", ok=(0, 1)):
                    git(path, "commit", "-q", "--allow-empty", "-m", "one")
        if adds:
            for path in self.sample(folders, min(len(folders), 2)):
                git(top, "add", "-f", "--", f"./{path.relative_to(top)}", ok=(0, 1, 128))
            for path in [p for p in all_below(top) if not p.is_dir() or p.is_symlink()]:
                if self.random() < 0.2:
                    git(top, "add", "-f", "--", f":(literal)./{path.relative_to(top)}", ok=(0, 1, 128))


def all_below(top: Path) -> list[Path]:
    """Not what is in a .git, nor in a repository of its own."""
    found = []
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(n for n in folders if n != ".git")
        found += [Path(folder, name) for name in sorted(folders + files)]
        for name in [n for n in folders if Path(folder, n, ".git").exists()]:
            folders.remove(name)
    return found


def listed(folder: Path, *words: str) -> set[str]:
    """Files as git lists them, in repositories inside, too, that are there."""
    found = set()
    for name in git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", *words):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            if (path / ".git").exists():
                found |= {os.path.join(name, inner) for inner in listed(path, *words)}
        elif os.path.lexists(path):
            found.add(name)
    return found


def sent(root: Path, rules: SourceRules) -> set[str]:
    return {os.fsdecode(e[0].encode("utf-8", "surrogateescape")) for e in read(root, rules).entries if e[1] != "d"}


class Own(Repository):
    """Knows what is tracked, and lets patterns.py decide."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.own, self.others = True, set()


@contextmanager
def own() -> Iterator[None]:
    ignore.Repository = Own  # type: ignore[attr-defined]
    try:
        yield
    finally:
        ignore.Repository = Repository  # type: ignore[attr-defined]


@contextmanager
def hidden() -> Iterator[None]:
    path = os.environ["PATH"]
    os.environ["PATH"] = "/nowhere"
    try:
        yield
    finally:
        os.environ["PATH"] = path


def same(what: str, ours: set[str], gits: set[str]) -> None:
    assert ours == gits, f"{what}: sent {sorted(ours - gits)}, git has {sorted(gits - ours)}"


def case(seed: int, work: Path) -> None:
    """AssertionError where git and fleet differ. work: an empty folder, $HOME lies beside it."""
    draw = Draw(seed)
    top = work / "top"
    top.mkdir()
    draw.tree(top)
    draw.repository(top)
    folders = [path for path in all_below(top) if path.is_dir() and not path.is_symlink()]
    root = draw.choice([top, top, *folders])
    root = top if (root / ".git").exists() else root
    gits, rules = listed(root), SourceRules(str(root))
    ignored = rules.repositories[""].own
    same("by git's list", sent(root, rules), gits) if not ignored else None
    with own():
        rules = SourceRules(str(root))
        ours = sent(root, rules)
        if not ignored and not shared(rules):
            same("by patterns.py", ours, gits)
    if not ignored and not any(git(r.top, "ls-files", "-z") for r in rules.repositories.values()):
        with hidden():
            same("with git hidden", sent(root, SourceRules(str(root))), gits)
    if root == top:
        reasons(draw, top, rules)
    composition(draw, root, ignored)


def shared(rules: SourceRules) -> bool:
    """Whether a repository tracks files in a folder that is another one's: git lists those of both, and what is hidden
    from git has no such files."""
    both = [(name[:-1], other) for name in rules.repositories for at, other in rules.repositories.items() if at != name]
    return any(name in other.tracked_folders for name, other in both)


def reasons(draw: Draw, top: Path, rules: SourceRules) -> None:
    """why() of paths that are there, and of others."""
    nested = [name for name in rules.repositories if name]
    asked = {str(path.relative_to(top)) + "/" * (path.is_dir() and not path.is_symlink()) for path in all_below(top)}
    asked |= {"/".join(draw.choices(NAMES, k=draw.randint(1, 4))) + draw.choice(("", "/")) for _ in range(20)}
    asked = {
        path for path in asked if not any(path.startswith(name) for name in nested) and not through_link(top, path)
    }
    tracked = rules.repositories[""].tracked
    asked = {p for p in asked if p.rstrip("/") not in tracked and not any(p.startswith(f"{one}/") for one in tracked)}
    asked = {p for p in asked if not is_other(top, p) and not any(q != p and q.startswith(f"{p}/") for q in asked)}
    for path in asked:
        if path.endswith("/"):
            (top / path).mkdir(parents=True, exist_ok=True)  # else git takes "a/" for something in it
    kinds = {path.rstrip("/"): path for path in asked if path.rstrip("/") not in asked or not path.endswith("/")}
    data = "\0".join(sorted(kinds))
    gits = {kinds[path] for path in git(top, "check-ignore", "-z", "--no-index", "--stdin", data=data, ok=(0, 1))}
    asked = set(kinds.values())
    folders = rules.repositories[""].tracked_folders
    gits -= {path for path in gits if path.rstrip("/") in folders}
    same("why", {p for p in asked if rules.why(p.rstrip("/"), p.endswith("/")) is not None}, gits)


def is_other(top: Path, path: str) -> bool:
    """Whether something of another kind is there: git looks."""
    full = top / path.rstrip("/")
    there = os.path.lexists(full)
    return (
        there
        and (full.is_dir() and not full.is_symlink()) != path.endswith("/")
        or any(os.path.lexists(one) and not one.is_dir() for one in list(full.parents)[: path.rstrip("/").count("/")])
    )


def through_link(top: Path, path: str) -> bool:
    return any(one.is_symlink() for one in [top / path.rstrip("/"), *(top / path).parents] if one != top)


def composition(draw: Draw, root: Path, ignored: bool) -> None:
    """A .fleetignore in the source's own folder."""
    text = draw.patterns(fleet=True)
    (root / ".fleetignore").write_text(text)
    try:
        rules = SourceRules(str(root))
        ours = sent(root, rules) - {".fleetignore"}
    except UsageError:  # malformed
        return
    if shared(rules):
        return
    same("with .fleetignore", ours, plainly(root, rules) - {".fleetignore"})
    patterns = [p for p in text.removeprefix("\ufeff").split("\n") if p and p[0] != "#"]
    tracked = any(repository.tracked for repository in rules.repositories.values())
    plain = len(rules.repositories) == 1 and not rules.outer and not ignored and not tracked
    if plain and not any(pattern[0] == "!" or pattern[-1] in " \t" for pattern in patterns):
        words = [f"--exclude={pattern}" for pattern in patterns]
        same("with --exclude", ours, listed(root, *words) - {".fleetignore"})


def plainly(root: Path, rules: SourceRules) -> set[str]:
    """The rule, a path at a time: the last pattern about each name on the way, .fleetignore's before git's; what git
    ignores with its folder, .fleetignore may bring back by name."""
    found = set()

    def walk(inside: str, repository: Repository, shut: bool) -> None:
        for name in sorted(os.listdir(root / inside)):
            path = os.path.join(inside, name)
            full = root / path
            folder = full.is_dir() and not full.is_symlink()
            if name == ".git":
                continue
            mine = rules.fleet.last(str(full), folder)
            if mine is not None and not mine.negated:
                continue
            tracked = path in repository.tracked
            out = not tracked and (shut or repository.ignores(str(full), folder) is not None)
            if mine is not None:
                out = False
            if folder:
                other = rules.repositories.get(path + "/") if (full / ".git").exists() and not out else None
                walk(path, other or repository, out)
            elif not out:
                found.add(path)

    walk("", rules.repositories[""], False)
    return found


def fuzz(seconds: float, seed: int, most: int = 1 << 60) -> tuple[int, list[str]]:
    """(cases, what failed, with the seed)."""
    until, count = time.monotonic() + seconds, 0
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        before, os.environ["HOME"] = os.environ.get("HOME", "/"), str(home)
        try:
            while time.monotonic() < until and count < most and len(failed) < 20:
                work = Path(folder, "work")
                work.mkdir()
                try:
                    case(seed + count, work)
                except AssertionError as error:
                    failed.append(f"seed {seed + count}: {error}")
                shutil.rmtree(work)
                count += 1
        finally:
            os.environ["HOME"] = before
    return count, failed


def summary(count: int, failed: list[str], seed: int) -> str:
    return "\n".join([f"ignore: {count} cases from seed {seed}, {len(failed)} failed", *failed])


def main(seconds: float = 60.0, seed: int | None = None) -> int:
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    count, failed = fuzz(seconds, seed)
    print(summary(count, failed, seed))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if sys.argv[1:] else 60.0, int(sys.argv[2]) if sys.argv[2:] else None))
