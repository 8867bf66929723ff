"""What each verb is typed with in a handed folder, and what it promises: what it may start, and where it may write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.cli.line.verbs import VERBS
from fleet.own_process import BOOT as OWN
from fleet.transport.program import BOOT as NODE
from tests.fuzz.handed_world import World

Words = Callable[[World], list[str]]
# shells that fleet starts, by how their line begins: on a node; the watch beside an ssh
SHELLS = (
    "exec sh -c '",
    "for p in /usr/bin/python3 ",
    "IFS= read -r fleet_spec; ",
    "\nfleet_expand() {",
    "read x; mv ",
)
COMPLETE = "complete"  # what the tab key asks: no verb
ASIDE = ("mv", "grep", "rm")  # of that watch
NEAR = frozenset(["sh", "sleep"])  # what any node needs
FAR = frozenset(["ssh", *ASIDE, "sh", "ssh-keygen"])
FACTS = frozenset(
    [
        "readlink",
        "rsync",
        "nvidia-smi",
        "nvcc",
        "gcc",
        "g++",
        "cc",
        "c++",
        "x86_64-linux-gnu-gcc-12",
        "x86_64-linux-gnu-g++-12",
        "ninja",
        "ip",
        "git",
        "ibstat",
        "lspci",
        "dash",
        "env",
        "hostname",
    ]
)


@dataclass(frozen=True)
class Promise:
    """words: behind the verb. programs: beside those that nodes and connections need. writes: below the current folder,
    or absolute; beside ~/.fleet and fleet's cache. hosts: it takes an inventory. local: it may work on this machine as
    its node, where it then starts what it was told to. leaves: a process may outlive it."""

    words: Words
    programs: frozenset[str] = frozenset()
    writes: Callable[[World, list[str]], list[str]] = lambda world, words: []
    hosts: bool = True
    local: bool = True
    leaves: bool = False


def _a_run(world: World) -> str:
    return world.rng.choice([*world.runs, *world.runs, "train", "../../outside", "/dev/zero", "nosuch"])


def _of_run(*options: str) -> Words:
    def words(world: World) -> list[str]:
        chosen = world.rng.choice([*options, ""]).split()
        return [_a_run(world), *chosen]

    return words


def _one_of(*lines: str) -> Words:
    return lambda world: world.rng.choice(lines).split()


def _runs_dir(world: World, words: list[str]) -> list[str]:
    return ["runs"]


def _after(option: str, default: str) -> Callable[[World, list[str]], list[str]]:
    def writes(world: World, words: list[str]) -> list[str]:
        return [words[words.index(option) + 1] if option in words else default]

    return writes


def _synced(world: World, words: list[str]) -> list[str]:
    """The destination, what stands beside it, and a mark in the source."""
    to = words[words.index("--to") + 1] if "--to" in words else None
    data = [word.partition(":")[2] or word for word in words if ":" in word]
    beside = [f"{to}/../.{Path(to).name}.fleet-sync"] if to else []
    return [*([to] if to else []), *beside, *data, r"?\.[0-9a-f]{32}\.fleet-source", "~/.data", "~/w"]


def _inventory(world: World, words: list[str]) -> list[str]:
    return ["fleet.yaml", *(f"{name}" for name in world.inventories), r"?\..*\.new", r"?.*\.yaml.*"]


def _play(world: World) -> list[str]:
    book = world.rng.choice([*world.playbooks, "demo.yaml", "nosuch.yaml", "evil.sh", "latest"])
    return [*world.rng.choice([["--dry-run"], []]), book]


def _sync(world: World) -> list[str]:
    to = str(world.home / "w/dest")
    source = world.rng.choice([".", "src", "runs", "nosuch"])
    lines = [
        f"{source} --to {to}",
        f"{source} --to {to} --all",
        f"--dry-run {source} --to {to}",
        f"{source} --to {to} --copy-unsafe-links --force",
        "",
        "--yes --dry-run",
        f"--data train.py:{world.home}/w/data",
        f"--data src:{world.home}/w/data/",
        f"--dry-run --wheels {world.rng.choice(world.files or ['wheels'])}",
        f"--wheels {world.rng.choice(world.files or ['wheels'])}",
    ]
    return world.rng.choice(lines).split()


def _launch(world: World) -> list[str]:
    env = f"--env-file {world.rng.choice([*world.files, 'env.txt', '/dev/zero'])}"
    lines = [
        f"--dry-run {env} train.py",
        "--dry-run --sync train.py",
        f"--again {_a_run(world)}",
        f"--from {_a_run(world)} --dry-run",
        f"--no-preflight {env} train.py",
        "--no-preflight --engine command --no-python /bin/true",
        "--no-preflight --detach --engine command --no-python /bin/true",
        "--sync --engine command --no-python /bin/true",
        "--on slurm --nodes 1 train.py",
        f"--dry-run --engine accelerate --config-file {world.rng.choice([*world.files, 'pipe'])} train.py",
    ]
    return world.rng.choice(lines).split()


def _get(world: World) -> list[str]:
    lines = [
        f"{world.cwd}/src --to got",
        f"{world.outside}/conf --to got",
        f"{_a_run(world)} --to got",
        "src --to got --all",
    ]
    return world.rng.choice(lines).split()


PIP = frozenset(["pip", "pip3", "ldconfig", "uname", "lsb_release"])
PROMISES: dict[str, Promise] = {
    "init": Promise(
        lambda world: world.rng.choice(
            [["-y"], ["-y", "hostfile"], ["-y", *world.inventories[:1]], ["-y", "-i", "new.yaml"]]
        ),
        FAR | NEAR | FACTS,
        _inventory,
        local=False,
    ),
    "hosts": Promise(
        _one_of("", "--format names", "--format ansible", "--format ssh-config", "--json", "--from slurm"),
        frozenset(["sinfo"]),
    ),
    "setup-ssh": Promise(
        _one_of("--dry-run", "--tofu", "--undo", "--password-file env.txt"), FAR, lambda w, _: ["~/.ssh"], local=False
    ),
    "check": Promise(_one_of("", "--dry-run", "--engine command"), FAR | NEAR | FACTS),
    "lab": Promise(
        _one_of("status", "down --dry-run", "up --dry-run", "cut lab01", "status --json"),
        frozenset(["ip"]),
        hosts=False,
    ),
    "examples": Promise(_one_of("", "--to examples", "demo.yaml"), writes=_after("--to", ""), hosts=False),
    "exec": Promise(_one_of("-- true", "--shell true", "--dry-run -- true"), FAR | NEAR | {"true"}),
    "sync": Promise(_sync, FAR | NEAR | PIP | {"git", "rsync"}, _synced),
    "launch": Promise(
        _launch,
        FAR | NEAR | FACTS | {"git", "true", "sbatch", "sinfo", "squeue"},
        lambda w, _: ["runs", *_synced(w, _)],
        leaves=True,
    ),
    "ps": Promise(_one_of("", "--all", "--json"), FAR | NEAR),
    "logs": Promise(_of_run("--tail 2", "--rank 0", "--err", "--since 5m", "--attempt 0"), FAR | NEAR),
    "attach": Promise(_of_run("--detach"), FAR | NEAR | {"squeue", "scontrol"}, _runs_dir, leaves=True),
    "stacks": Promise(_of_run("--rank 0", "--all-threads"), FAR | NEAR, _runs_dir),
    "stop": Promise(
        _of_run("--grace 1", "--dry-run"), FAR | NEAR | {"scancel", "scontrol", "squeue"}, _runs_dir, leaves=True
    ),
    "get": Promise(_get, FAR | NEAR, _after("--to", ".")),
    "play": Promise(
        _play,
        FAR | NEAR | FACTS | {"git", "rsync", "true", "scontrol"},
        lambda w, _: ["runs", "got", "/work"],
        local=False,
        leaves=True,
    ),
    "ssh": Promise(_one_of("h true", "h"), FAR),
    "forward": Promise(_one_of("h 9", "h 9:19"), FAR, local=False),
    "forget": Promise(_of_run("--dry-run"), FAR, _runs_dir),
    "runs": Promise(
        _one_of("", "--json", "--prune --yes --keep 0 --days 0", "--prune --keep 0 --dry-run"),
        writes=_runs_dir,
        hosts=False,
    ),
    "kill-port": Promise(_one_of("9", "29500-29510 --yes", "9 --run latest"), FAR | NEAR),
    "slurm-conf": Promise(_one_of("--to slurm", "--to slurm --force"), FAR | NEAR | FACTS, _after("--to", "slurm")),
    "pack": Promise(
        _one_of("", "fleet.pyz", "src/a.pyz"),
        writes=lambda w, _: ["fleet.pyz", r"?\.?fleet\.pyz.*", "src"],
        hosts=False,
    ),
    "explain-env": Promise(_one_of("", "--platform kubeflow", "--json"), hosts=False),
    "build": Promise(
        _one_of("deepspeed --cpu", "deepspeed --source src", "./src --cpu", "./", "deepspeed --dry-run"),
        FAR | NEAR | FACTS | PIP | {"git", "rsync"},
        lambda w, _: ["builds", *_synced(w, _)],
        local=False,
    ),
    "help": Promise(_one_of("", "launch", "completion"), hosts=False),
    COMPLETE: Promise(
        _one_of("logs", "-i", "-w", "exec -w h", "get", "play", "--runs-dir runs logs"), hosts=False, local=False
    ),
}


def command(world: World, verb: str) -> list[str]:
    """Returns a command line of this verb. KeyError where nothing is promised of it."""
    promise = PROMISES[verb]
    words = promise.words(world)
    common = list[str]()
    if promise.hosts and world.some(0.4) and world.inventories:
        common += ["-i", world.rng.choice(world.inventories)]
    if promise.local and not world.trusted and world.some(0.3):
        common += ["--transport", "local"]
    elif promise.hosts and world.some(0.2):
        common += ["--transport", "openssh"]
    if world.some(0.1):
        common += ["-v"]
    return [*common, verb, *words]


def verbs(world: World, count: int) -> list[str]:
    """Draws verbs: half of them are about what the folder has."""
    known = [*VERBS, COMPLETE]
    return [world.rng.choice(world.about if world.some(0.6) else known) for _ in range(count)]


def roots(world: World, verb: str, words: list[str]) -> tuple[list[str], list[re.Pattern[str]]]:
    """Returns folders and files that a verb may write to, and patterns of names in the current folder."""
    found = [
        str(world.home / ".fleet"),
        str(world.home / ".cache/fleet"),
        str(world.base / "tmp"),
        "/dev/null",
        "/dev/tty",
    ]
    found += ["/dev/shm", "/proc/", f"={world.home}/.cache"]
    patterns = list[re.Pattern[str]]()
    for name in PROMISES[verb].writes(world, words):
        if name.startswith("?"):
            patterns.append(re.compile(name[1:]))
        elif name:
            path = Path(str(world.home) + name[1:]) if name.startswith("~") else world.cwd / name
            found += _with_what_it_leads_to(world, path)
    return found, patterns


def _with_what_it_leads_to(world: World, path: Path) -> Iterator[str]:
    """Yields a path, and where links lead there that are the user's own, or root's."""
    yield str(path.parent.resolve() / path.name)
    if path.is_symlink() and path.lstat().st_uid in (0, world.uid):
        yield str(path.resolve() if path.exists() else path.parent / path.readlink())


def wrong_program(verb: str, program: str, argv: list[str], world: World, python: frozenset[str]) -> str | None:
    """Returns why a program should not have been started, None where it is in order."""
    name = Path(program).name
    if Path(program).is_relative_to(world.base):
        return None if program == str(world.base / "bin/fleet") else "it was handed over"
    if program in python or re.fullmatch(r"python3(\.\d+)?", name):
        own = argv[1:4] == ["-I", "-c", OWN] or argv[1:5] == ["-I", "-S", "-c", NODE]
        of_run = argv[1:3] == ["-I", "-S"] and argv[3].startswith(str(world.home / ".fleet/runs/"))
        asked = argv[1:2] == ["-c"] and argv[2].startswith("\nimport sys\nif sys.path and not sys.path[0]:\n")
        return (
            None
            if own or of_run or asked or str(world.base / "bin/fleet") in argv
            else "a Python that is none of fleet's own"
        )
    if name in ("sh", "dash", "bash"):
        return None if argv[1:2] == ["-c"] and argv[2].startswith(SHELLS) else "a shell that is none of fleet's own"
    return None if name in PROMISES[verb].programs else "it is not in the verb's list"
