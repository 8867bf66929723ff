"""What is written into handed files: names, settings of git, inventories, playbooks, patterns."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.handed_kinds import ESCAPES

HOSTS = "hosts: {h: {address: 127.0.0.1, port: 9}}\n"


def words(text: str) -> list[str]:
    return text.split()


MODULES = words(
    "click rich yaml paramiko cryptography ClusterShell packaging fabric invoke fleet pip setuptools wheel json "
    "subprocess tempfile logging socket ssl hashlib shlex signal gc select glob shutil threading argparse copy random "
    "dataclasses typing fnmatch inspect traceback sqlite3 zipfile xmlrpc _strptime numpy torch tqdm"
)
EARLY = words("sitecustomize usercustomize os re site codecs encodings")
PROGRAMS = words(
    "git ssh ssh-keygen scp rsync python python3 pip pip3 sh bash env srun scontrol sbatch squeue sinfo scancel pdsh "
    "sleep uname nvidia-smi torchrun deepspeed g++ less pager ip tar readlink true"
)
RUN_FILES = words(
    "run.json summary.json events.jsonl .lock .attempt code.diff job.sh job.out job.env h h/rank0.out h/rank0.err "
    "h/node.log stacks.txt attempt0 attempt0/h/rank0.out leader.log state.json .held .made ../.gitignore"
)
OF_GIT = words("index HEAD info/exclude objects/info/alternates packed-refs config.worktree config")
KEPT = words("agreed source-ids password-files brought/x lab/lab/state.json setup-ssh/x failed last known_hosts")
IN_A_TARGET = words(".fleet-get .fleet-get/x .fleet-sync .fleet-sync/state .fleet-sync/lock .fleet-data/state")
PACKED = words("fleet.pyz .fleet.pyz.new fleet.pyz.new .fleet.yaml.new fleet.yaml.new slurm slurm/slurm.conf examples")
PATTERNS = ["*a" * 16, "**/" * 20 + "x", "[" * 200, "!" * 99, "a" * 5000, "\\", "[!-~]*" * 12, "/" * 300, "[]-a]"]
VARIABLES = ["A=1\n", "LD_PRELOAD=./a.so\nPATH=.\n", "=\n", "A" * 3000, "A=\0\n", "A='\n", "PYTHONPATH=\n"]


@functools.cache
def early() -> frozenset[str]:
    """Returns what python and its site import before any script can look at sys.path."""
    line = "import sys; print(*sys.modules, 'sitecustomize', 'usercustomize')"
    said = subprocess.run([sys.executable, "-c", line], cwd="/", capture_output=True, text=True, check=True)
    return frozenset(said.stdout.split())


def git_settings(rng: random.Random, top: Path, program: str, cwd: Path, outside: Path) -> dict[str, str]:
    """Returns settings of a repository that name programs, or files elsewhere."""
    run = words(
        "core.fsmonitor core.pager core.editor core.sshCommand core.gitProxy core.alternateRefsCommand diff.external "
        "diff.evil.command diff.evil.textconv gpg.program remote.evil.uploadpack pager.ls-files pager.status "
        "pager.diff filter.evil.smudge merge.evil.driver"
    )
    shell = words("credential.helper alias.ls-files alias.status alias.diff alias.config")
    return {
        **dict.fromkeys(run, program),
        **dict.fromkeys(shell, f"!{program}"),
        "core.hooksPath": str(top / ".git/hooked"),
        "core.attributesFile": str(cwd / "attributes"),
        "core.excludesFile": str(cwd / "excludes"),
        "core.worktree": str(outside),
        "core.untrackedCache": "true",
        "include.path": rng.choice([str(cwd / "included"), "/dev/zero"]),
        "log.showSignature": "true",
        "submodule.recurse": "true",
        "diff.ignoreSubmodules": "none",
        "status.submoduleSummary": "true",
        "trace2.eventTarget": str(outside / "traced"),
    }


def lacking(rng: random.Random, program: str, outside: Path) -> dict[str, str]:
    """Returns settings of a partial clone, which asks for what it lacks by a program that they name."""
    return {
        "extensions.partialClone": "evil",
        "core.repositoryFormatVersion": "1",
        "remote.evil.url": rng.choice([str(outside), f"ext::{program}"]),
        "remote.evil.uploadpack": program,
        "remote.evil.promisor": "true",
    }


def as_config(settings: dict[str, str]) -> str:
    lines = list[str]()
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        head, _, sub = section.partition(".")
        lines.append(f"[{head}{f' {json.dumps(sub)}' if sub else ''}]\n\t{name} = {json.dumps(value)}\n")
    return "".join(lines)


def inventory(rng: random.Random, program: str, touch: str) -> tuple[str, bool]:
    """Returns an odd inventory, and whether it says what runs on its hosts. touch: a line of shell that leaves a
    mark."""
    jump = f"-oProxyCommand={touch}"
    trusted = [f"python: {program}", f"activate: {touch}", "env: {LD_PRELOAD: ./a.so}", "workdir: ../../outside"]
    if rng.random() < 0.2:
        return f"hosts: {{h: {{address: 127.0.0.1, port: 9, {rng.choice(trusted)}}}}}\n", True
    if rng.random() < 0.1:
        return f"h ansible_host=127.0.0.1 ansible_port=9 ansible_python_interpreter={program}\n", True
    name = rng.choice([jump, "h;id", "../../h", "h\n", "$(id)", "-x"])
    fields = [
        f"address: {json.dumps(rng.choice([jump, '$(id)', 'a b', '::1', '0']))}",
        f"proxy_jump: {json.dumps(jump)}",
        f"user: {json.dumps(jump)}",
        f"identity_file: {rng.choice(['/dev/zero', 'pipe', '../outside/secret'])}",
        f"host_key: {json.dumps(touch)}",
    ]
    laughs = "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))
    many = rng.choice(["gpu[1-999999999]", "g[1-9][1-9999][1-9999]", "g[1-99999]"])
    texts = [
        f"hosts: {{{json.dumps(name)}: {{}}}}\n",
        *(f"hosts: {{h: {{address: 127.0.0.1, port: 9, {field}}}}}\n" for field in fields),
        HOSTS + f"sync: {{code: {{src: {rng.choice(['..', '../outside', '/etc', '/dev', '~'])}}}}}\n",
        HOSTS + "sync: {data: ['../outside/secret:x', 'train.py:../../x']}\n",
        f"hosts: !!python/object/apply:os.system ['{touch}']\n",
        f"a: &a [x,x,x,x,x,x,x,x,x]\n{laughs}hosts: *j\n",
        "hosts: " + "[" * 5000 + "\n",
        f"hosts: {{{many}: {{}}}}\n",
        "hosts: '@all'\n",
        HOSTS + "groups: {a: '@b', b: '@a'}\n",
        f"{jump} slots=8\n",
        "127.0.0.1 port=9 slots=99999999999999999999\n",
        f"h\n# {ESCAPES}\n\0\n",
    ]
    return rng.choice(texts), False


def playbook(rng: random.Random, name: str, touch: str) -> str:
    steps = ["hosts:", "exec: ['true']", "sync: {to: /work}", "check:", "stop: latest", "get: {what: x}"]
    odd = [
        f"!!python/object/apply:os.system ['{touch}']",
        f"play: {name}",
        f"include: {name}",
        "vars: {a: '${a}', b: '${' }",
        "hosts: &a [*a]",
        "- " * 500 + "x",
    ]
    return "".join(f"- {step}\n" for step in rng.choices(steps + odd, k=rng.randint(1, 3)))


def requirements(rng: random.Random) -> str:
    lines = ["-e .", ".", "./src", "-r more.txt", "-r /dev/zero", "-r pipe", "--find-links wheels", "click==0"]
    return "".join(f"{line}\n" for line in rng.choices([*lines, "git+file://."], k=rng.randint(1, 3)))


def plan(rng: random.Random, name: str, script: str, folder: str, touch: str) -> dict[str, object] | None:
    """Returns a run.json that says that its run goes on, somewhere that only it knows of; some of it is odd."""
    if rng.random() < 0.2:
        return None
    host = {"name": "h", "address": "127.0.0.1", "port": 9, "activate": touch, "python": script}
    node = {"node_rank": 0, "ranks": [0], "argv": [script], "command": [script], "workdir": folder, "env": []}
    plan: dict[str, object] = {
        "run": name,
        "engine": "command",
        "world_size": 1,
        "master": "127.0.0.1:20583",
        "logs": f"runs/{name}",
        "lease": rng.choice([None, 1e9]),
        "grace": 10.0,
        "node_timeout": 15.0,
        "hosts": {"h": node},
        "started": time.time() - 60,
        "owner": "root@vm",
        "repeats": None,
        "fleet": {"version": "0.1.0", "argv": ["fleet", "launch", script], "folder": folder, "transport": "local"},
        "launch": {"script": script, "engine": "command", "no_python": True, "folder": folder},
        "inventory": {"source": "fleet.yaml", "whole": True, "selected": "h", "used": "h", "hosts": [host]},
        "code": {"folder": folder, "commit": None, "diff": None},
        "slurm": {"job": "--user=root"},
        "job": rng.choice(["--user=root", "1", 5]),
        "platform": rng.choice([None, None, "slurm", "kubeflow", 5]),
    }
    odd: list[object] = [None, [], {}, "x", -1, 1e308, "../../outside", {"../../new": {}}, [script], [[[]]], True]
    for key in rng.sample(list(plan), rng.choice([0, 0, 1, 2, 4])):
        plan[key] = rng.choice(odd)
    return plan
