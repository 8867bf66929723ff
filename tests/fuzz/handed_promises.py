"""What each verb is typed with in a handed folder, and what it promises: what it may start, and where it may write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.cli.line.verbs import VERBS
from fleet.own_process import BOOT as OWN
from fleet.transport.program import BOOT as NODE
from tests.fuzz.handed_texts import words as _words
from tests.fuzz.handed_world import World
from tests.fuzz.traced import ROOT

Words = Callable[[World], list[str]]
COMPLETE = "complete"  # what the tab key asks: no verb
# shells that fleet starts, by how their line begins: on a node; the watch beside an ssh
SHELLS = (
    "exec sh -c '",
    "for p in /usr/bin/python3 ",
    "IFS= read -r fleet_spec; ",
    "\nfleet_expand() {",
    "read x; mv ",
)
ASKS = ("\nimport sys\nif sys.path and not sys.path[0]:\n", "\nimport csv, hashlib")  # a node's own Python
HOSTS = _words("ssh ssh-keygen mv grep rm sleep")
FACTS = _words("readlink nvidia-smi nvcc gcc g++ cc c++ ninja ip git ibstat lspci env hostname true dmesg journalctl")
PIP = _words("pip pip3 ldconfig uname lsb_release")


@dataclass(frozen=True)
class Promise:
    """words: behind the verb. programs: beside those that connections need. writes: what it may write, below the
    current folder, ~, or absolute; behind a '?' a pattern of names: beside ~/.fleet and fleet's cache. hosts: it takes
    an inventory. local: it may have this machine as its node, which then runs what it is told to. leaves: a process
    may outlive it."""

    words: Words
    programs: list[str]
    writes: Callable[[list[str]], list[str]]
    hosts: bool = True
    local: bool = True
    leaves: bool = False


def _one_of(*lines: str) -> Words:
    return lambda world: world.rng.choice(lines).split()


def _of_run(*options: str) -> Words:
    return lambda world: [_a_run(world), *world.rng.choice([*options, ""]).split()]


def _a_run(world: World) -> str:
    return world.rng.choice([*world.runs * 2, "train", "../../outside", "/dev/zero", "nosuch"])


def _a_file(world: World) -> str:
    return world.rng.choice([*world.files * 2, "env.txt", "wheels", "/dev/zero", "pipe"])


def _init(world: World) -> list[str]:
    return ["-y", *world.rng.choice([[], ["hostfile"], world.inventories[:1], ["-i", "new.yaml"]])]


def _play(world: World) -> list[str]:
    book = world.rng.choice([*world.playbooks * 3, "demo.yaml", "nosuch.yaml", "evil.sh", "latest"])
    return [*world.rng.choice([["--dry-run"], []]), book]


def _sync(world: World) -> list[str]:
    to, source = f"--to {world.home}/w/dest", world.rng.choice([".", ".", "src", "runs", "nosuch"])
    code = [f"{source} {to}", f"{source} {to} --all", f"{source} {to} --dry-run", f"{source} {to} --force"]
    data = [f"--data train.py:{world.home}/w/data", f"--data src:{world.home}/w/data/"]
    more = ["", "--yes --dry-run", f"--dry-run --wheels {_a_file(world)}", f"--wheels {_a_file(world)}"]
    more += [f"--image {_a_file(world)} --dry-run"]  # else podman writes where it keeps its own: test_image_archives
    if world.files and world.some(0.4):
        return ["--wheels", world.rng.choice(world.files)]
    return world.rng.choice([*code * 2, f"{source} {to} --copy-unsafe-links", *data, *more]).split()


def _launch(world: World) -> list[str]:
    env, engine = f"--env-file {_a_file(world)}", "--engine command --no-python /bin/true"
    lines = [
        f"--dry-run {env} train.py",
        f"--dry-run --engine accelerate --config-file {_a_file(world)} train.py",
        f"--again {_a_run(world)} --dry-run",
        f"--from {_a_run(world)} --dry-run",
        f"--no-preflight {env} {engine}",
        f"--no-preflight {engine}",
        f"--no-preflight --detach {engine}",
        f"--sync --workdir {world.home}/w/dest {engine}",
        "--on slurm --nodes 1 train.py",
    ]
    return world.rng.choice(lines).split()


def _get(world: World) -> list[str]:
    lines = [f"{world.cwd}/src", f"{world.outside}/conf", _a_run(world), "src --all", f"{world.cwd}/src --force"]
    return [*world.rng.choice(lines).split(), "--to", "got"]


def _build(world: World) -> list[str]:
    """A tree that is given to it runs on its node; deepspeed's own comes from an index, which there is none of."""
    here = [] if world.trusted else ["deepspeed --cpu --transport local"] * 3
    return world.rng.choice(["deepspeed --source src", "./src --cpu", "./", "deepspeed --dry-run", *here]).split()


def _nothing(words: list[str]) -> list[str]:
    return []


def _these(*paths: str) -> Callable[[list[str]], list[str]]:
    return lambda words: [*paths]


def _to(words: list[str]) -> list[str]:
    return [words[words.index("--to") + 1]] if "--to" in words else []


def _delivered(words: list[str]) -> list[str]:
    """A destination, what stands beside it, a mark that a source is not its own destination, what it is known by."""
    return ["~/w", "~/.data", r"?\.[0-9a-f]{32}\.fleet-source", r"?\.?fleet-source(\.new)?"]


def _launched(words: list[str]) -> list[str]:
    return ["runs", *_delivered(words)]


RUNS = _these("runs")
SLURM = _words("scontrol squeue scancel")
OF_RUN = ("--tail 2", "--rank 0", "--err", "--since 5m", "--attempt 0")
PRUNE = "--prune --yes --keep 0 --days 0"
LAB = _one_of("status", "down --dry-run", "up --dry-run", "cut lab01", "status --json")
FORMS = ("", "--format names", "--format ansible", "--format ssh-config", "--json", "--from slurm")
SETUP = _one_of("--dry-run", "--tofu", "--undo", "--password-file env.txt")
TAB = _one_of("logs", "-i", "-w", "exec -w h", "get", "play", "--runs-dir runs logs", "launch --from")
PROMISES: dict[str, Promise] = {
    "init": Promise(_init, FACTS, _these("fleet.yaml", "new.yaml", r"?\..*\.yaml.*"), local=False),
    "hosts": Promise(_one_of(*FORMS), ["sinfo"], _nothing),
    "setup-ssh": Promise(SETUP, [], _these("~/.ssh"), local=False),
    "check": Promise(_one_of("", "--dry-run", "--engine command"), FACTS, _nothing),
    "lab": Promise(LAB, ["ip"], _nothing, hosts=False),
    "examples": Promise(_one_of("", "--to examples", "demo.yaml"), [], _to, hosts=False),
    "exec": Promise(_one_of("-- true", "--shell true", "--dry-run -- true"), ["true"], _nothing),
    "sync": Promise(_sync, [*PIP, "git", "readlink"], _delivered),
    "launch": Promise(_launch, [*FACTS, "sbatch", "sinfo", "squeue"], _launched, leaves=True),
    "ps": Promise(_one_of("", "--all", "--json"), [], _nothing),
    "logs": Promise(_of_run(*OF_RUN), [], RUNS),  # what is on the hosts comes here first
    "attach": Promise(_of_run("--detach"), SLURM, RUNS, leaves=True),
    "top": Promise(_one_of("--once", "latest --once", "--once --json"), [], _nothing),
    "stacks": Promise(_of_run("--rank 0", "--all-threads"), [], RUNS),
    "report": Promise(_of_run("--html page.html", "--json"), [], _these(r"?\.?page\.html.*"), hosts=False),
    "stop": Promise(_of_run("--grace 1", "--dry-run"), SLURM, RUNS, leaves=True),
    "get": Promise(_get, [], _to),
    "play": Promise(_play, [*FACTS, *SLURM], lambda words: [*_launched(words), "/work"], local=False, leaves=True),
    "ssh": Promise(_one_of("h true", "h"), [], _nothing),
    "forward": Promise(_one_of("h 9", "h 9:19"), [], _nothing, local=False),
    "forget": Promise(_of_run("--dry-run"), [], RUNS),
    "runs": Promise(_one_of("", "--json", PRUNE, f"{PRUNE} --dry-run"), [], RUNS, hosts=False),
    "kill-port": Promise(_one_of("9", "29500-29510 --yes", "9 --run latest"), [], _nothing),
    "slurm-conf": Promise(_one_of("--to slurm", "--to slurm --force"), FACTS, _to),
    "pack": Promise(_one_of("", "fleet.pyz", "src/a.pyz"), [], _these(r"?\.?(fleet|a)\.pyz.*"), hosts=False),
    "explain-env": Promise(_one_of("", "--platform kubeflow", "--json"), [], _nothing, hosts=False),
    "build": Promise(_build, [*FACTS, *PIP], lambda words: ["builds", *_delivered(words)], local=False),
    "help": Promise(_one_of("", "launch", "completion"), [], _nothing, hosts=False),
    COMPLETE: Promise(TAB, [], _nothing, hosts=False, local=False),
}


def verbs(world: World, count: int) -> list[str]:
    """Draws verbs: the last may be any, those before it are about what the folder has."""
    return [*world.rng.choices(world.about, k=count - 1), world.rng.choice([*VERBS, COMPLETE])]


def command(world: World, verb: str) -> list[str]:
    """Returns the words of a command line. KeyError where nothing is promised of its verb."""
    promise = PROMISES[verb]
    common = list[str]()
    if promise.hosts and world.some(0.4) and world.inventories:
        common += ["-i", world.rng.choice(world.inventories)]
    if promise.hosts and promise.local and not world.trusted and world.some(0.4):
        common += ["--transport", "local"]
    elif promise.hosts and world.some(0.2):
        common += ["--transport", "openssh"]
    if world.some(0.1):
        common += ["-v"]
    words = promise.words(world)
    if world.huge and verb in ("sync", "launch", "get", "build"):  # to deliver 20 GiB takes its time
        words = ["--dry-run", *words]
    return [*common, verb, *words]


@dataclass(frozen=True)
class Allowed:
    """What a command may write: paths, all below them, and names in the handed folder."""

    paths: list[str]
    names: list[re.Pattern[str]]
    cwd: Path

    def has(self, path: str) -> bool:
        here = Path(path)
        if any(path == each or path.startswith(each.rstrip("/") + "/") for each in self.paths):
            return True
        return here.is_relative_to(self.cwd) and any(name.fullmatch(here.name) for name in self.names)


def allowed(world: World, verb: str, words: list[str]) -> Allowed:
    base = [f"{world.home}/.fleet", f"{world.home}/.cache", f"{world.base}/tmp", "/dev/null", "/dev/tty", "/dev/shm"]
    found, names = [*base, "/proc"], [re.compile(r"\.fleet-who-[\d-]+")]  # asks a file server who we are
    for name in PROMISES[verb].writes(words):
        if name.startswith("?"):
            names.append(re.compile(name[1:]))
        else:
            found += _with_what_it_leads_to(world, world.cwd / re.sub("^~", str(world.home), name))
    return Allowed(found, names, world.cwd)


def _with_what_it_leads_to(world: World, path: Path) -> Iterator[str]:
    """Yields a path, and where it leads as a link of the user's own, or root's."""
    yield str(path.parent.resolve() / path.name)
    if path.is_symlink() and path.lstat().st_uid in (0, world.uid):
        yield str((path.parent / path.readlink()).absolute())


def wrong_program(world: World, verb: str, program: str, argv: list[str]) -> str | None:
    """Returns why a program should not have been started, None where it is in order."""
    name, fleet = Path(program).name, str(world.base / "bin/fleet")
    if Path(program).is_relative_to(world.base):
        return None if program == fleet else "it was handed over"
    if re.fullmatch(r"python3?(\.\d+)?", name):
        own = argv[1:4] == ["-I", "-c", OWN] or argv[1:5] == ["-I", "-S", "-c", NODE] or fleet in argv
        rsh = argv[1:3] == ["-I", "-S"] and argv[3] == str(ROOT / "fleet/transport/rsh_client.py")
        of_run = argv[1:3] == ["-I", "-S"] and argv[3].startswith(f"{world.home}/.fleet/runs/")
        asks = argv[1:2] == ["-c"] and argv[2].startswith(ASKS)
        return None if own or rsh or of_run or asks else "a Python that is none of fleet's own"
    if name in ("sh", "dash", "bash"):
        fleets = argv[1:2] == ["-c"] and (
            argv[2].startswith(SHELLS) or argv[2] == "true"
        )  # the latter as exec was told
        return None if fleets else "a shell that is none of fleet's own"
    called = Path(argv[0]).name  # gcc is a link
    return None if {name, called} & {*HOSTS, *PROMISES[verb].programs} else "it is not in the verb's list"
