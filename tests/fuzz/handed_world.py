"""Folders as somebody hands them over, drawn: a repository, folders of runs, inventories, playbooks, requirement, ignore
and env files, with modules of known names, programs, links, pipes, devices, what is huge or deep or another user's.
Whatever in it can run leaves a mark where it did."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.run_folders import an_id, run_folder

SECRET = "a secret of this machine, told by nobody"
OTHER = 54321
HOSTS = "hosts: {h: {address: 127.0.0.1, port: 9}}\n"
# without those that python or its site imports before fleet's script can look at sys.path
MODULES = [
    "click",
    "rich",
    "yaml",
    "paramiko",
    "cryptography",
    "ClusterShell",
    "packaging",
    "fabric",
    "invoke",
    "fleet",
    "pip",
    "setuptools",
    "wheel",
    "json",
    "subprocess",
    "tempfile",
    "logging",
    "socket",
    "ssl",
    "hashlib",
    "shlex",
    "signal",
    "gc",
    "select",
    "glob",
    "shutil",
    "threading",
    "argparse",
    "copy",
    "random",
    "dataclasses",
    "typing",
    "fnmatch",
    "inspect",
    "traceback",
    "sqlite3",
    "zipfile",
    "xmlrpc",
    "_strptime",
    "numpy",
    "torch",
    "tqdm",
]
EARLY = ["sitecustomize", "usercustomize", "os", "re", "site", "codecs", "encodings"]
PROGRAMS = [
    "git",
    "ssh",
    "ssh-keygen",
    "scp",
    "rsync",
    "python",
    "python3",
    "pip",
    "pip3",
    "sh",
    "bash",
    "env",
    "srun",
    "scontrol",
    "sbatch",
    "squeue",
    "sinfo",
    "scancel",
    "pdsh",
    "sleep",
    "uname",
    "nvidia-smi",
    "torchrun",
    "deepspeed",
    "g++",
    "less",
    "pager",
    "ip",
    "tar",
    "readlink",
    "true",
]
ESCAPES = "\x1b]0;owned\x07\x1b[2J"


class World:
    """base: its folder. home, cwd: of who types; uid: who that is. marks: where what ran leaves its name."""

    def __init__(self, base: Path, seed: int) -> None:
        self.rng = random.Random(f"handed {seed}")
        self.base, self.seed = base, seed
        self.uid = self.rng.choice([0, 12345])
        self.home, self.cwd, self.outside, self.marks = (base / n for n in ("home", "handed", "outside", "marks"))
        self.runs, self.inventories, self.playbooks, self.files = ["latest"], list[str](), list[str](), list[str]()
        self.trusted = False  # an inventory names programs, which `local` would start
        self.open_path = self.rng.random() < 0.2  # PYTHONPATH has an empty entry
        self.others: list[Path] = []
        self.drew: list[str] = []
        self.about: list[str] = []

    def some(self, likely: float) -> bool:
        return self.rng.random() < likely

    def make(self) -> None:
        for folder in (self.home, self.cwd, self.outside, self.marks, self.base / "tmp"):
            folder.mkdir()
        self.marks.chmod(0o1777)
        (self.outside / "folder").mkdir()
        (self.outside / "secret").write_text(f"{SECRET}\n")
        (self.outside / "secret").chmod(0o600)
        (self.outside / "conf").write_text("of the machine\n")
        (self.cwd / "train.py").write_text("print('well')\n")
        self.inventory(self.cwd / "fleet.yaml", plain=self.some(0.6))
        for part in self.rng.sample(list(PARTS), self.rng.randint(2, 5)):
            self.drew.append(part.__name__)
            self.about += PARTS[part].split()
            part(self)
        self.give_away()

    def give_away(self) -> None:
        """All is the user's, but for what is planted as another's; the folder may be shared."""
        for folder, folders, names in os.walk(self.base):
            for name in (*folders, *names):
                os.lchown(os.path.join(folder, name), self.uid, self.uid)
        for path in (self.base, self.marks, self.base / "bin", self.base / "bin/fleet"):
            if path.exists():
                os.chown(path, 0, 0)
        for path in self.others:
            if os.path.lexists(path):
                os.lchown(path, OTHER, OTHER)
        self.home.chmod(0o700)
        owner, mode = self.rng.choice([*[(self.uid, 0o755)] * 6, (0, 0o1777), (OTHER, 0o755), (OTHER, 0o1777)])
        os.chown(self.cwd, owner, owner)
        self.drew.append(f"the folder is {owner}'s, {mode:o}")
        self.cwd.chmod(mode)

    # -- what leaves a mark ------------------------------------------------------------------------------------
    def python(self, path: Path, more: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = str(self.marks / path.relative_to(self.base).as_posix().replace("/", "+"))
        self._put(path, f"open({mark!r}, 'w').close()\n{more}")

    def script(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = self.marks / path.relative_to(self.base).as_posix().replace("/", "+")
        self._put(path, f"#!/bin/sh\n: > '{mark}'\n")
        path.chmod(0o755)
        return path

    def command(self, name: str) -> str:
        return f"touch {self.marks}/{name}"

    @staticmethod
    def _put(path: Path, text: str | bytes) -> None:
        """Unless something else is there already."""
        if not os.path.lexists(path):
            path.write_bytes(text if isinstance(text, bytes) else text.encode())

    # -- what a file may be instead of one ---------------------------------------------------------------------
    def odd(self, path: Path, text: str = "") -> None:
        """Puts something of a kind of its own in the place of a file. text: what would be there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        kind = self.rng.choice(list(KINDS))
        self.drew.append(f"{kind} {path.relative_to(self.base)}")
        KINDS[kind](self, path, text)

    def odd_or(self, path: Path, text: str, likely: float = 0.4) -> None:
        if self.some(likely):
            self.odd(path, text)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._put(path, text)

    # -- parts -------------------------------------------------------------------------------------------------
    def modules(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            name = self.rng.choice(MODULES if self.open_path or self.some(0.8) else EARLY)
            where = self.cwd / self.rng.choice(["", "", "", "runs", "builds", "src", "playbooks", "wheels"])
            files = [f"{name}.py", f"{name}/__init__.py", f"{name}/__main__.py", f"{name}.pth"]
            file = self.rng.choice(files[:3] if where == self.cwd else files)
            if file.endswith("__main__.py"):
                self.python(where / name / "__init__.py")
            self.python(where / file)
        if self.some(0.2):
            self.python(self.cwd / "runs/fleet/__init__.py")

    def programs(self) -> None:
        for name in self.rng.sample(PROGRAMS, self.rng.randint(1, 8)):
            self.script(self.cwd / self.rng.choice(["", "", "bin", ".venv/bin", "runs"]) / name)

    def repository(self, where: Path | None = None) -> None:
        """A repository whose settings name programs."""
        top = where or self.cwd / self.rng.choice(["", "", "", "src", "src/nested"])
        top.mkdir(parents=True, exist_ok=True)
        quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": "/usr/bin:/bin"}
        (top / "tracked.py").write_text("a = 1\n")
        (top / "data.bin").write_bytes(b"\0\1")
        git = ["git", "-C", str(top), "-c", "user.name=a", "-c", "user.email=a@b"]
        line = " && ".join(" ".join([*git, words]) for words in ("init -q", "add -A -- tracked.py data.bin"))
        line += " && " + " ".join([*git, "commit -q -m a"]) if self.some(0.7) else ""
        subprocess.run(["sh", "-c", line], env=quiet, check=True, capture_output=True)
        program = str(self.script(top / ".git/evil"))
        settings = {
            "core.fsmonitor": program,
            "core.hooksPath": str(top / ".git/hooked"),
            "core.pager": program,
            "core.editor": program,
            "core.sshCommand": program,
            "core.gitProxy": program,
            "core.attributesFile": str(self.cwd / "attributes"),
            "core.excludesFile": str(self.cwd / "excludes"),
            "core.worktree": str(self.outside),
            "core.untrackedCache": "true",
            "core.alternateRefsCommand": program,
            "diff.external": program,
            "diff.evil.command": program,
            "diff.evil.textconv": program,
            "gpg.program": program,
            "log.showSignature": "true",
            "credential.helper": f"!{program}",
            "alias.ls-files": f"!{program}",
            "alias.status": f"!{program}",
            "pager.ls-files": program,
            "pager.status": program,
            "pager.diff": program,
            "include.path": self.rng.choice([str(self.cwd / "included"), "/dev/zero"]),
            "submodule.recurse": "true",
            "diff.ignoreSubmodules": "none",
            "status.submoduleSummary": "true",
            "filter.evil.smudge": program,
            "merge.evil.driver": program,
            "trace2.eventTarget": str(self.outside / "traced"),
        }
        chosen = self.rng.sample(list(settings), self.rng.randint(1, 8))
        if self.some(0.3):  # a partial clone asks for what it lacks, by a program that its settings name
            url = self.rng.choice([str(self.outside), f"ext::{program}"])
            promised = {"url": url, "uploadpack": program, "promisor": "true"}
            settings.update({f"remote.evil.{name}": value for name, value in promised.items()})
            settings.update({"extensions.partialClone": "evil", "core.repositoryFormatVersion": "1"})
            chosen += [
                "extensions.partialClone",
                "core.repositoryFormatVersion",
                *(f"remote.evil.{n}" for n in promised),
            ]
            lacking = hashlib.sha1(b"blob 6\0a = 1\n").hexdigest()
            (top / ".git/objects" / lacking[:2] / lacking[2:]).unlink(missing_ok=True)
        with (top / ".git/config").open("a") as config:
            for key in chosen:
                section, _, name = key.rpartition(".")
                head, _, sub = section.partition(".")
                config.write(
                    f"[{head}{f' {json.dumps(sub)}' if sub else ''}]\n\t{name} = {json.dumps(settings[key])}\n"
                )
        self.drew.append(f"git {chosen}")
        for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit", "post-checkout"):
            self.script(top / ".git" / self.rng.choice(["hooks", "hooked"]) / hook)
        if self.some(0.5):
            (top / ".gitattributes").write_text("* diff=evil merge=evil\n")
        (top / "tracked.py").write_text("a = 2\n")
        if self.some(0.1):
            shutil.rmtree(top / ".git/objects" / self.rng.choice(os.listdir(top / ".git/objects")))
        if self.some(0.4):
            names = [
                "index",
                "HEAD",
                "info/exclude",
                "objects/info/alternates",
                "packed-refs",
                "config.worktree",
                "config",
            ]
            self.odd(top / ".git" / self.rng.choice(names), "a\n")
        if self.some(0.2):
            inner = top / "module"
            inner.mkdir(exist_ok=True)
            os.rename(top / ".git", inner / "real")
            (top / ".git").write_text(f"gitdir: {inner / 'real'}\n")

    def runs_folder(self) -> None:
        if self.some(0.1):
            return self.odd(self.cwd / "runs")
        for number in range(self.rng.randint(1, 4)):
            name = an_id(self.rng.choice(["train", "a", "x" * 60, "evil"]) + str(number))
            self.runs.append(name)
            plan = self.rng.choice(PLANS)(self, name)
            summary = self.rng.choice([None, None, {"exit_code": 0}, {"exit_code": "0"}, {"ok": [], "hosts": 5}])
            going = ["version", "plan", "running", "detached"]
            events: list[list[str]] = [going, going, going[:3], going[:1], [*going, "stop"], ["\ud800"]]
            folder = run_folder(
                self.cwd / "runs",
                name,
                plan=plan,
                summary=summary,
                events=self.rng.choice(events),
                logs={"h/rank0.out": f"a line {ESCAPES}\n", "h/node.log": "said\n"},
            )
            os.utime(folder / "events.jsonl", (time.time() - 60,) * 2)  # no sign of life any more
            for _ in range(self.rng.choice([0, 1, 1, 2, 3])):
                self.odd(folder / self.rng.choice(RUN_FILES), "{}")
            if self.some(0.3):
                log = folder / self.rng.choice(["h/rank0.out", "h/node.log", "h/rank0.err", "job.out", "events.jsonl"])
                log.unlink(missing_ok=True)
                log.symlink_to(self.outside / "secret")
            if self.some(0.2):
                self.python(folder / self.rng.choice(["fleet/__init__.py", "json.py", "sitecustomize.py"]))
            if self.some(0.15):
                self.others.append(folder)
            if self.some(0.15):
                shutil.move(folder, self.outside / "folder" / name)
                folder.symlink_to(self.outside / "folder" / name)
        if self.some(0.5):
            to = self.rng.choice([self.runs[-1], "../../outside", "/dev/zero", str(self.outside), "../handed"])
            (self.cwd / "runs/latest").symlink_to(to)
        return None

    def inventory(self, path: Path | None = None, plain: bool = False) -> None:
        if path is None:
            path = self.cwd / f"odd{len(self.inventories)}.{self.rng.choice(['yaml', 'yaml', 'txt', 'ini'])}"
            self.inventories.append(path.name)
            if self.some(0.3):
                return self.odd(path, HOSTS)
        if plain:
            return self._put(path, HOSTS)
        program = str(self.script(self.cwd / "evil.sh"))
        jump = f"-oProxyCommand={self.command('jump')}"
        trusted = self.rng.choice(
            [f"python: {program}", f"activate: {self.command('activate')}", "env: {LD_PRELOAD: ./a.so}"]
        )
        name = self.rng.choice([jump, "h;id", "../../h", "h\n", "$(id)", "-x"])
        texts = [
            f"hosts: {{{json.dumps(name)}: {{}}}}\n",
            f"hosts: {{h: {{address: {json.dumps(self.rng.choice([jump, '$(id)', 'a b', '::1', '0']))}}}}}\n",
            f"hosts: {{h: {{address: 127.0.0.1, port: 9, proxy_jump: {json.dumps(jump)}}}}}\n",
            f"hosts: {{h: {{address: 127.0.0.1, port: 9, user: {json.dumps(jump)}}}}}\n",
            f"hosts: {{h: {{address: 127.0.0.1, port: 9, identity_file: {self.rng.choice(['/dev/zero', 'pipe', program])}}}}}\n",
            f"hosts: {{h: {{address: 127.0.0.1, port: 9, {trusted}}}}}\n",
            HOSTS + f"sync: {{code: {{src: {self.rng.choice(['..', '../outside', '/etc', '/dev', '~'])}}}}}\n",
            HOSTS + "sync: {data: ['../outside/secret:x', 'train.py:../../x']}\n",
            f"hosts: !!python/object/apply:os.system ['{self.command('yaml')}']\n",
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9))
            + "hosts: *j\n",
            "hosts: " + "[" * 5000 + "\n",
            "hosts: {" + self.rng.choice(["gpu[1-999999999]", "g[1-9][1-9999][1-9999]", "g[1-99999]"]) + ": {}}\n",
            "hosts: '@all'\n",
            HOSTS + "groups: {a: '@b', b: '@a'}\n",
            f"{jump} slots=8\n",
            "127.0.0.1 port=9 slots=99999999999999999999\n",
            f"h ansible_connection=local ansible_host=127.0.0.1 ansible_port=9 ansible_python_interpreter={program}\n",
            f"h\n# {ESCAPES}{SECRET[:2]}\n\0\n",
        ]
        text = self.rng.choice(texts)
        self.trusted |= program in text or trusted in text
        path.write_text(text)
        return None

    def hostfile(self) -> None:
        if self.some(0.5):
            (self.cwd / "fleet.yaml").unlink(missing_ok=True)
        self.odd_or(self.cwd / "hostfile", "127.0.0.1 port=9\n")

    def playbook(self) -> None:
        name = f"book{len(self.playbooks)}.yaml"
        self.playbooks.append(name)
        steps = [
            "hosts:",
            "exec: ['true']",
            "sync: {to: /work}",
            "check:",
            "stop: latest",
            "get: {what: x}",
            "fleet: [hosts]",
        ]
        odd = [
            f"!!python/object/apply:os.system ['{self.command('book')}']",
            "play: " + name,
            "include: " + name,
            "vars: {a: '${a}', b: '${' }",
            "hosts: &a [*a]",
            "- " * 500 + "x",
        ]
        text = "".join(f"- {step}\n" for step in self.rng.choices(steps + odd, k=self.rng.randint(1, 3)))
        self.odd_or(self.cwd / name, text, 0.3)

    def requirements(self) -> None:
        self.files.append("requirements.txt")
        self.setup()
        lines = [
            "-e .",
            ".",
            "./src",
            "-r more.txt",
            "-r /dev/zero",
            "-r pipe",
            "--find-links wheels",
            "click==0",
            "git+file://.",
        ]
        text = "".join(f"{line}\n" for line in self.rng.choices(lines, k=self.rng.randint(1, 3)))
        self.odd_or(self.cwd / "requirements.txt", text, 0.3)
        self.odd_or(self.cwd / "more.txt", "./src\n", 0.6)
        self._pipe(self.cwd / "pipe")

    def wheels(self) -> None:
        self.files.append("wheels")
        for name in ("a-1.0-py3-none-any.whl", "b-1.0-cp311-cp311-linux_x86_64.whl", "c-1.0.tar.gz"):
            self.odd_or(self.cwd / "wheels" / name, "PK", 0.6)

    def setup(self) -> None:
        for top in (self.cwd, self.cwd / "src"):
            self.python(top / "setup.py", "from setuptools import setup\nsetup(name='evil')\n")
            self.python(top / "backend.py")
            backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            self._put(top / "pyproject.toml", backend)

    def ignores(self) -> None:
        bad = [
            "*a" * 16,
            "**/" * 20 + "x",
            "[" * 200,
            "!" * 99,
            "(a+)+$",
            "a" * 5000,
            "\\",
            "[!-~]*" * 12,
            "/" * 300,
            "[]-a]",
        ]
        text = "".join(
            f"{self.rng.choice(bad)}{self.rng.choice(['', 'b', '/'])}\n" for _ in range(self.rng.randint(1, 4))
        )
        where = self.cwd / self.rng.choice(["", "", "src"])
        self.odd_or(where / self.rng.choice([".fleetignore", ".fleetignore", ".gitignore"]), text, 0.3)
        for name in ("a" * 200, "ab" * 100, "a" * 100 + "b"):
            self._put(where / name, "")

    def env_file(self) -> None:
        self.files.append("env.txt")
        text = self.rng.choice(["A=1\n", f"LD_PRELOAD={self.cwd}/a.so\nPATH={self.cwd}\n", "=\n", "A" * 3000, "A=\0\n"])
        self.odd_or(self.cwd / "env.txt", text, 0.6)

    def packs(self) -> None:
        for name in self.rng.sample(
            ["fleet.pyz", ".fleet.pyz.new", "fleet.pyz.new", ".fleet.yaml.new", "fleet.yaml.new"], 2
        ):
            self.odd(self.cwd / name)

    def builds(self) -> None:
        if self.some(0.3):
            return self.odd(self.cwd / "builds")
        self.odd_or(self.cwd / "builds/b/build.log", "", 0.8)
        self.setup()
        return None

    def tree(self) -> None:
        """A source with everything in it that a source may have."""
        for name in ("pipe", "device", "link", "out", "up", "loop"):
            self._put(self.cwd / "src" / f"{name}.txt", "") if (self.cwd / "src").is_dir() else (
                self.cwd / "src"
            ).mkdir()
        pairs = {"out": str(self.outside / "secret"), "up": "../../outside", "loop": "loop", "zero": "/dev/zero"}
        for name in self.rng.sample(list(pairs), 2):
            if not os.path.lexists(self.cwd / "src" / name):
                (self.cwd / "src" / name).symlink_to(pairs[name])
        if self.some(0.5):
            self._pipe(self.cwd / "src/fifo")
        deep = self.cwd / "src" / "/".join(["d"] * self.rng.choice([3, 60]))
        deep.mkdir(parents=True, exist_ok=True)
        for name in ("-rf", "a\nb", ESCAPES.replace("/", ""), "$(id)", " ", "\udcff"):
            if self.some(0.3):
                self._put(self.cwd / "src" / name, "x")

    def kept(self) -> None:
        """What lies in ~/.fleet, and in a target, as no fleet has left it."""
        names = [
            "agreed",
            "source-ids",
            "password-files",
            "brought/x",
            "lab/lab/state.json",
            "setup-ssh/x",
            "failed",
            "last",
        ]
        (self.home / ".fleet").mkdir(0o700, exist_ok=True)
        for name in self.rng.sample(names, 3):
            self.odd(self.home / ".fleet" / name, "{}")
        if self.some(0.5):
            self.odd(
                self.cwd
                / self.rng.choice(
                    [".fleet-get", ".fleet-get/x", ".fleet-sync", ".fleet-sync/state", ".fleet-sync/lock"]
                )
            )
        if self.some(0.2):
            self.odd(self.home / ".cache/fleet" / self.rng.choice(["wheels", "names", "locks"]))

    # -- kinds -------------------------------------------------------------------------------------------------
    def _pipe(self, path: Path, text: str = "") -> None:
        if not os.path.lexists(path):
            os.mkfifo(path)

    def _deep(self, path: Path, text: str) -> None:
        path.write_text(self.rng.choice(["[", '{"a":', "- ", "(", "a:\n "]) * self.rng.choice([5_000, 200_000]) + "\n")

    def _endless(self, path: Path, text: str) -> None:
        path.symlink_to(self.rng.choice(["/dev/zero", "/dev/urandom", "/dev/tty"]))

    def _device(self, path: Path, text: str) -> None:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
        path.chmod(0o666)

    def _huge(self, path: Path, text: str) -> None:
        with path.open("wb") as file:
            file.truncate(20 << 30)

    def _elsewhere(self, path: Path, text: str) -> None:
        path.symlink_to(self.outside / self.rng.choice(["secret", "conf", "new", "folder", "folder/new"]))

    def _folder(self, path: Path, text: str) -> None:
        path.mkdir()
        (path / "in it").write_text("x")

    def _others(self, path: Path, text: str) -> None:
        path.write_text(text)
        self.others.append(path)

    def _others_link(self, path: Path, text: str) -> None:
        self._elsewhere(path, text)
        self.others.append(path)

    def _bytes(self, path: Path, text: str) -> None:
        path.write_bytes(self.rng.choice([b"\0" * 100, self.rng.randbytes(300), b"\xff\xfe" + b"a\0" * 50, b""]))

    def _loop(self, path: Path, text: str) -> None:
        path.symlink_to(path.name)

    def _socket(self, path: Path, text: str) -> None:
        here = os.getcwd()
        os.chdir(path.parent)  # an address has a hundred bytes
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path.name)
        finally:
            os.chdir(here)

    def _long(self, path: Path, text: str) -> None:
        path.write_text(self.rng.choice(["a", "1", "-", '"']) * 3_000_000)

    def _typed(self, path: Path, text: str) -> None:
        values = ["[]", "null", "1e999", "NaN", "9" * 5000, '{"time": "x", "event": 5}', '"\\ud800"', "[[[]]]", "true"]
        path.write_text(self.rng.choice(values) + "\n")

    def _escapes(self, path: Path, text: str) -> None:
        path.write_text(ESCAPES * 10 + "\n")


KINDS: dict[str, Callable[[World, Path, str], None]] = {
    "pipe": World._pipe,
    "deep": World._deep,
    "endless": World._endless,
    "device": World._device,
    "huge": World._huge,
    "elsewhere": World._elsewhere,
    "folder": World._folder,
    "another's": World._others,
    "another's link": World._others_link,
    "bytes": World._bytes,
    "loop": World._loop,
    "socket": World._socket,
    "long": World._long,
    "typed": World._typed,
    "escapes": World._escapes,
}
# what is drawn, and the verbs that it is about
PARTS: dict[Callable[[World], None], str] = {
    World.modules: "build sync stop launch hosts runs",
    World.programs: "sync launch build exec check",
    World.repository: "sync launch build get",
    World.runs_folder: "runs logs attach stop forget stacks hosts launch get complete",
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
RUN_FILES = [
    "run.json",
    "summary.json",
    "events.jsonl",
    ".lock",
    ".attempt",
    "code.diff",
    "job.sh",
    "job.out",
    "job.env",
    "h",
    "h/rank0.out",
    "h/rank0.err",
    "h/node.log",
    "stacks.txt",
    "attempt0",
    "attempt0/h/rank0.out",
    "keeper.log",
    "janitor.log",
    "../.gitignore",
]


def _plan(world: World, name: str) -> dict[str, object]:
    """A run.json that says that its run goes on, somewhere that only it knows of; some of it is odd."""
    script = str(world.script(world.cwd / "evil.sh"))
    host = {"name": "h", "address": "127.0.0.1", "port": 9}
    node = {"node_rank": 0, "ranks": [0], "argv": [script], "command": [script], "workdir": str(world.cwd), "env": []}
    plan: dict[str, object] = {
        "run": name,
        "engine": "command",
        "world_size": 1,
        "master": "127.0.0.1:20583",
        "logs": f"runs/{name}",
        "lease": None,
        "grace": 10.0,
        "node_timeout": 15.0,
        "hosts": {"h": {**node, "activate": world.command("activate")}},
        "started": time.time() - 60,
        "owner": "root@vm",
        "repeats": None,
        "fleet": {
            "version": "0.1.0",
            "argv": ["fleet", "launch", script],
            "folder": str(world.cwd),
            "transport": "local",
        },
        "launch": {
            "script": script,
            "engine": "command",
            "no_python": True,
            "preflight": False,
            "folder": str(world.cwd),
        },
        "inventory": {"source": "fleet.yaml", "whole": True, "selected": "h", "used": "h", "env": {}, "hosts": [host]},
        "code": {"folder": str(world.cwd), "commit": None, "diff": None},
        "slurm": {"job": "--user=root"},
        "job": world.rng.choice(["--user=root", "1", 5]),
        "platform": world.rng.choice([None, None, "slurm", "kubeflow", 5]),
    }
    for key in world.rng.sample(list(plan), world.rng.choice([0, 0, 1, 2, 4])):
        odd: list[object] = [
            None,
            [],
            {},
            "x",
            -1,
            1e308,
            "../../outside",
            {"../../outside/new": {}},
            [script],
            [[[]]],
            True,
        ]
        plan[key] = world.rng.choice(odd)
    return plan


PLANS: list[Callable[[World, str], dict[str, object] | None]] = [
    _plan,
    _plan,
    lambda world, name: None,
    lambda world, name: {"started": 1.0},
    lambda world, name: {"started": "x", "hosts": {"../../outside": {}}},
    lambda world, name: {"started": 1e308, "run": "../../outside/folder"},
]
