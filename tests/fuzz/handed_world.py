"""Folders as somebody hands them over, drawn: a repository, folders of runs, inventories, playbooks, requirement,
ignore and env files, with modules of known names and programs; many a file is no file. What can run leaves a mark where
it did."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import handed_texts as texts
from tests.fuzz.handed_kinds import ESCAPES, KINDS, Ground, huge
from tests.run_folders import an_id, run_folder

SECRET = "a secret of this machine, told by nobody"
USER, OTHER = 12345, 54321


class World:
    """base: its folder. home, cwd: of who types; uid: who that is. marks: where what ran leaves its name. runs,
    inventories, playbooks, files: what there is to be named. about: verbs that what was drawn is about. trusted: an
    inventory says what runs on its hosts. huge: so is what may be sent. open_path: PYTHONPATH has an empty entry."""

    def __init__(self, base: Path, seed: int) -> None:
        self.rng, self.base = random.Random(f"handed {seed}"), base
        self.uid = self.rng.choice([0, USER])
        self.home, self.cwd, self.outside, self.marks = (base / n for n in ("home", "handed", "outside", "marks"))
        self.runs, self.inventories, self.playbooks, self.files = ["latest"], list[str](), list[str](), list[str]()
        self.trusted, self.huge, self.open_path = False, False, self.some(0.2)
        self.drew, self.about = list[str](), list[str]()
        self.ground = Ground(self.rng, self.outside, [])

    def some(self, likely: float) -> bool:
        return self.rng.random() < likely

    def make(self) -> None:
        for folder in (self.home, self.cwd, self.outside, self.marks, self.base / "tmp"):
            folder.mkdir()
        (self.outside / "folder").mkdir()
        (self.outside / "secret").write_text(f"{SECRET}\n")
        (self.outside / "secret").chmod(0o600)
        (self.outside / "conf").write_text("of the machine\n")
        (self.cwd / "train.py").write_text("print('well')\n")
        (self.cwd / "fleet.yaml").write_text(texts.HOSTS)
        often = [World.repository, World.runs_folder, World.packs] * 2
        for part in dict.fromkeys(self.rng.sample([*PARTS, *often], self.rng.randint(2, 5))):
            self.drew.append(part.__name__)
            self.about += PARTS[part].split()
            part(self)
        self.give_away()

    def give_away(self) -> None:
        """Gives all to the user, but for what is planted as another's. The folder may be shared."""
        for top in (self.home, self.cwd, self.outside, self.base / "tmp"):
            os.chown(top, self.uid, self.uid)
            for folder, folders, names in os.walk(top):
                for name in (*folders, *names):
                    os.lchown(os.path.join(folder, name), self.uid, self.uid)
        for path in filter(os.path.lexists, self.ground.others):
            os.lchown(path, OTHER, OTHER)
        self.home.chmod(0o700)
        self.marks.chmod(0o1777)
        owner, mode = self.rng.choice([*[(self.uid, 0o755)] * 6, (0, 0o1777), (OTHER, 0o755), (OTHER, 0o1777)])
        os.chown(self.cwd, owner, owner)
        self.cwd.chmod(mode)
        self.drew.append(f"the folder is {owner}'s, {mode:o}")

    # -- how files are put there -------------------------------------------------------------------------------
    def mark(self, path: Path) -> str:
        return str(self.marks / path.relative_to(self.base).as_posix().replace("/", "+"))

    def put(self, path: Path, text: str) -> Path:
        """Writes a file, unless something else is there already, or in the place of a folder above it."""
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                file.write(text)
        return path

    def python(self, path: Path, more: str = "") -> None:
        self.put(path, f"open({self.mark(path)!r}, 'w').close()\n{more}")

    def script(self, path: Path) -> str:
        self.put(path, f"#!/bin/sh\n: > '{self.mark(path)}'\n")
        if path.is_file() and not path.is_symlink():
            path.chmod(0o755)
        return str(path)

    def touch(self, name: str) -> str:
        return f"touch {self.marks}/{name}"

    def odd(self, path: Path, text: str = "") -> None:
        """Puts something in the place of a file that has `text`."""
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.is_dir():
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        kind = self.rng.choice(KINDS)
        self.drew.append(f"{kind.__name__} {path.relative_to(self.base)}")
        kind(self.ground, path, text)
        self.huge |= kind is huge and not {"runs", ".git"}.intersection(path.parts)

    def put_or(self, likely: float, path: Path, text: str) -> None:
        (self.odd if self.some(likely) else self.put)(path, text)

    # -- parts -------------------------------------------------------------------------------------------------
    def modules(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            name = self.rng.choice([*texts.MODULES, *texts.EARLY])
            if self.open_path and name in texts.early():
                continue
            where = self.cwd / self.rng.choice(["", "", "", "runs", "builds", "src", "playbooks", "wheels"])
            file = self.rng.choice([".py", "/__init__.py", "/__main__.py"])
            self.python(where / f"{name}/__init__.py") if file == "/__main__.py" else None
            self.python(where / f"{name}{file}")
        if self.some(0.2):
            self.python(self.cwd / "runs/fleet/__init__.py")

    def programs(self) -> None:
        for name in self.rng.sample(texts.PROGRAMS, self.rng.randint(1, 8)):
            self.script(self.cwd / self.rng.choice(["", "", "bin", ".venv/bin", "runs"]) / name)

    def repository(self) -> None:
        """A repository whose settings and hooks are programs."""
        top = self.cwd / self.rng.choice(["", "", "", "src", "src/nested"])
        self.put(top / "tracked.py", "a = 1\n")
        git = f"git -C {top} -c user.name=a -c user.email=a@b"
        line = f"{git} init -q && {git} add tracked.py" + (f" && {git} commit -q -m a" if self.some(0.7) else "")
        quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": "/usr/bin:/bin"}
        subprocess.run(["sh", "-c", line], env=quiet, check=True, capture_output=True)
        program = self.script(top / ".git/evil")
        settings = texts.git_settings(self.rng, top, program, self.cwd, self.outside)
        keys = [*self.rng.sample(list(settings), self.rng.randint(1, 8)), *["core.fsmonitor"] * self.some(0.5)]
        chosen = {key: settings[key] for key in keys}
        if self.some(0.3):
            chosen.update(texts.lacking(self.rng, program, self.outside))
            name = hashlib.sha1(b"blob 6\0a = 1\n").hexdigest()
            (top / ".git/objects" / name[:2] / name[2:]).unlink(missing_ok=True)
        with (top / ".git/config").open("a") as config:
            config.write(texts.as_config(chosen))
        self.drew.append(f"git {[*chosen]}")
        for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit", "post-checkout"):
            self.script(top / ".git" / self.rng.choice(["hooks", "hooked"]) / hook)
        if self.some(0.5):
            self.put(top / ".gitattributes", "* diff=evil merge=evil\n")
        (top / "tracked.py").write_text("a = 2\n")
        if self.some(0.4):
            self.odd(top / ".git" / self.rng.choice(texts.OF_GIT), "a\n")
        if self.some(0.2):
            (top / "module").mkdir()
            os.rename(top / ".git", top / "module/real")
            self.put(top / ".git", f"gitdir: {top / 'module/real'}\n")

    def runs_folder(self) -> None:
        if self.some(0.1):
            self.odd(self.cwd / "runs")
            return
        for number in range(self.rng.randint(1, 4)):
            self.a_run(an_id(self.rng.choice(["train", "a", "x" * 60, "evil"]) + str(number)))
        if self.some(0.5):
            to = self.rng.choice([self.runs[-1], "../../outside", "/dev/zero", str(self.outside), "../handed"])
            (self.cwd / "runs/latest").symlink_to(to)

    def a_run(self, name: str) -> None:
        self.runs.append(name)
        going = ["version", "plan", "running", "detached"]
        folder = run_folder(
            self.cwd / "runs",
            name,
            plan=texts.plan(self.rng, name, self.script(self.cwd / "evil.sh"), str(self.cwd), self.touch("run")),
            summary=self.rng.choice([None, None, None, {"exit_code": 0}, {"exit_code": "0"}, {"ok": [], "hosts": 5}]),
            events=self.rng.choice([going, going, going[:3], going[:1], [*going, "stop"], ["\ud800"]]),
            logs={"h/rank0.out": f"a line {ESCAPES}\n", "h/node.log": "said\n"},
        )
        os.utime(folder / "events.jsonl", (time.time() - 60,) * 2)  # no sign of life any more
        for _ in range(self.rng.choice([0, 1, 1, 2, 3])):
            self.odd(folder / self.rng.choice(texts.RUN_FILES), "{}")
        log = folder / self.rng.choice(["h/rank0.out", "h/rank0.out", "h/rank0.err", "h/node.log", "events.jsonl"])
        if self.some(0.5) and log.parent.is_dir() and not log.is_dir():
            log.unlink(missing_ok=True)
            log.symlink_to(self.outside / "secret")
            self.runs += [name] * 4
        if self.some(0.2):
            self.python(folder / self.rng.choice(["fleet/__init__.py", "json.py", "sitecustomize.py"]))
        if self.some(0.15):
            self.ground.others.append(folder)
        elif self.some(0.15):
            shutil.move(folder, self.outside / "folder" / name)
            folder.symlink_to(self.outside / "folder" / name)

    def inventory(self) -> None:
        name = f"odd.{self.rng.choice(['yaml', 'yaml', 'txt', 'ini'])}"
        self.inventories.append(name)
        if self.some(0.3):
            self.odd(self.cwd / name, texts.HOSTS)
            return
        text, trusted = texts.inventory(self.rng, self.script(self.cwd / "evil.sh"), self.touch("inventory"))
        self.trusted |= trusted
        self.put(self.cwd / name, text)
        if self.some(0.3):
            os.replace(self.cwd / name, self.cwd / "fleet.yaml")
            self.inventories.remove(name)

    def hostfile(self) -> None:
        if self.some(0.5):
            (self.cwd / "fleet.yaml").unlink(missing_ok=True)
        self.put_or(0.4, self.cwd / "hostfile", "127.0.0.1 port=9\n")

    def playbook(self) -> None:
        self.playbooks.append("book.yaml")
        self.put_or(0.3, self.cwd / "book.yaml", texts.playbook(self.rng, "book.yaml", self.touch("book")))

    def requirements(self) -> None:
        self.files.append("requirements.txt")
        self.setup()
        self.put_or(0.3, self.cwd / "requirements.txt", texts.requirements(self.rng))
        self.put_or(0.6, self.cwd / "more.txt", "./src\n")
        os.mkfifo(self.cwd / "pipe")

    def wheels(self) -> None:
        self.files.append("wheels")
        for name in ("a-1.0-py3-none-any.whl", "b-1.0-cp311-cp311-linux_x86_64.whl", "c-1.0.tar.gz"):
            self.put_or(0.6, self.cwd / "wheels" / name, "PK")

    def setup(self) -> None:
        for top in (self.cwd, self.cwd / "src"):
            self.python(top / "setup.py", "from setuptools import setup\nsetup(name='evil')\n")
            self.python(top / "backend.py")
            build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            self.put(top / "pyproject.toml", build)

    def ignores(self) -> None:
        lines = [
            self.rng.choice(texts.PATTERNS) + self.rng.choice(["", "b", "/"]) for _ in range(self.rng.randint(1, 4))
        ]
        where = self.cwd / self.rng.choice(["", "", "src"])
        name = self.rng.choice([".fleetignore", ".fleetignore", ".gitignore"])
        self.put_or(0.3, where / name, "\n".join(lines) + "\n")
        for long in ("a" * 200, "ab" * 100, "a" * 100 + "b"):
            self.put(where / long, "")

    def env_file(self) -> None:
        self.files.append("env.txt")
        self.put_or(0.6, self.cwd / "env.txt", self.rng.choice(texts.VARIABLES))

    def packs(self) -> None:
        for name in self.rng.sample(texts.PACKED, 2):
            self.odd(self.cwd / name)

    def builds(self) -> None:
        self.setup()
        if self.some(0.3):
            self.odd(self.cwd / "builds")
        else:
            self.put_or(0.8, self.cwd / "builds/b/build.log", "")

    def tree(self) -> None:
        """A source with everything in it that a source may have."""
        source = self.cwd / "src"
        source.mkdir(exist_ok=True)
        leads = {"out": str(self.outside / "secret"), "up": "../../outside", "loop": "loop", "zero": "/dev/zero"}
        for name in self.rng.sample(list(leads), 2):
            (source / name).symlink_to(leads[name])
        if self.some(0.5):
            self.odd(source / "odd", "x")
        (source / "/".join(["d"] * self.rng.choice([3, 60]))).mkdir(parents=True, exist_ok=True)
        for name in ("-rf", "a\nb", ESCAPES.replace("/", ""), "$(id)", " ", "\udcff"):
            if self.some(0.3):
                self.put(source / name, "x")

    def kept(self) -> None:
        """What lies in ~/.fleet, and in a target, as no fleet has left it."""
        (self.home / ".fleet").mkdir(0o700)
        for name in self.rng.sample(texts.KEPT, 3):
            self.odd(self.home / ".fleet" / name, "{}")
        if self.some(0.5):
            self.odd(self.cwd / self.rng.choice(texts.IN_A_TARGET))
        if self.some(0.2):
            self.odd(self.home / ".cache/fleet" / self.rng.choice(["wheels", "names", "locks"]))


# what is drawn, and the verbs that it is about
PARTS: dict[Callable[[World], None], str] = {
    World.modules: "build sync stop launch hosts runs",
    World.programs: "sync launch build exec check",
    World.repository: "sync launch build get",
    World.runs_folder: "runs logs logs attach stop forget stacks hosts launch get complete",
    World.inventory: "hosts init exec check setup-ssh ssh complete",
    World.hostfile: "hosts init exec complete",
    World.playbook: "play",
    World.requirements: "sync build",
    World.wheels: "sync",
    World.setup: "build sync",
    World.ignores: "sync launch",
    World.env_file: "launch setup-ssh",
    World.packs: "pack init slurm-conf examples",
    World.builds: "build",
    World.tree: "sync get build",
    World.kept: "sync get setup-ssh lab forget",
}
