"""What two and three verbs in a row make together, one of two nodes being a liar: what is drawn for hostile.py,
and how it is judged, by what lies on the head and what is believed of the other node afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fleet
from fleet.own import own_umask

RAN = "ran"  # below the ground: what no word of a node's may make
PARTS = {
    "HEAD": "ref: refs/heads/main\n",
    "config": '[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = "touch {RAN}"\n',
    "objects/o": "o",
    "refs/r": "r",
    "commondir": "../y\n",
    "index": "",
    "hooks/post-index-change": "#!/bin/sh\ntouch {RAN}\n",
    ".git/config": '[core]\nfsmonitor = "touch {RAN}"\n',
}
OTHERS = ["head", "Config", "objects", "refs", "l/a", "l", "a", ".fleet-get/gpu1/file/x"]
LINKS = ["../..", "{HEAD}/home", "{HEAD}/home/.ssh", "objects", "y", "a", "/etc"]
MODES = [0o644, 0o755, 0o666, 0o777, 0o4755, 0o2755, 0o6777]


def gets(base: Path, pick: random.Random) -> list[list[str]]:
    """Two or three gets into one folder, each of a part of what would be a repository, whole or name by name. Links and
    files that change places come between."""
    mark, head = str(base / RAN), str(base / "head")
    commands, wanted = list[list[str]](), pick.sample(list(PARTS), k=pick.randint(4, len(PARTS)))
    folders = pick.sample(["x", "x/y", "x/y/z"], k=2)
    rounds = pick.choice([2, 2, 3])
    for number in range(rounds):
        top = base / f"nodes/gpu1/round{number}"
        made = set[str]()
        for folder in folders:
            for name in pick.sample(wanted, k=pick.randint(1, len(wanted))) + pick.sample(
                OTHERS, k=pick.choice([0, 1])
            ):
                path = top / folder / name
                with contextlib.suppress(OSError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if name in OTHERS and pick.random() < 0.7:
                        path.symlink_to(pick.choice(LINKS).replace("{HEAD}", head))
                    else:
                        path.write_text(PARTS.get(name, "text\n").replace("{RAN}", mark))
                        path.chmod(pick.choice(MODES))
                made.add(f"{folder}/{name.partition('/')[0]}")
        for path in top.rglob("*"):
            if path.is_dir() and not path.is_symlink() and pick.random() < 0.2:
                path.chmod(pick.choice([0o755, 0o777, 0o2777, 0o1777]))
        whole = pick.random() < 0.6
        for name in ["x"] if whole else sorted(made):
            to = f"got/{os.path.dirname(name)}".rstrip("/")
            commands.append(["get", "-w", "gpu1", "--force", f"{{node}}/round{number}/{name}", "--to", to])
    return commands[:12]


def judge_gets(base: Path, out: str) -> Iterator[str]:
    """What a get must never leave: a repository that nobody made, a mode that is more than a user's file has."""
    got, umask = base / "head/work/got", own_umask()
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
    for folder, folders, names in os.walk(got):
        for name in names + folders:
            full = os.path.join(folder, name)
            if not os.path.islink(full) and os.lstat(full).st_mode & 0o7777 & ~(0o777 & ~umask):
                yield f"{os.path.relpath(full, got)} has mode {os.lstat(full).st_mode & 0o7777:o}"
        if "head" in {name.lower() for name in names + folders}:
            where = {**env, "GIT_CEILING_DIRECTORIES": os.path.dirname(folder)}
            asked = [
                subprocess.run(["git", *words], cwd=folder, env=where, capture_output=True, timeout=60)
                for words in (["rev-parse", "--absolute-git-dir"], ["status"])
            ]
            if asked[0].returncode == 0:
                yield f"{os.path.relpath(folder, got)} is a repository of git's: {sorted(names + folders)}"
    if (base / RAN).exists():
        yield "git runs what the node named"


def init_and_launch(base: Path, pick: random.Random) -> list[list[str]]:
    form = pick.choice(["ssh-config", "ansible", "pdsh", "slurm", "deepspeed", "json"])
    launch = ["launch", "-w", "127.0.0.1", "--engine", "command", "--grace", "1", "./job"]
    return [["init", "-y", "hostfile"], ["hosts", "--format", form], launch]


def words_of(base: Path) -> list[str]:
    """What a node may say in the hope that it is more than data."""
    mark = base / RAN
    return [
        f"$(touch {mark})",
        f"`touch {mark}`",
        f"x; touch {mark}",
        f"-oProxyCommand=touch {mark}",
        f"x'\ntouch {mark}\n'",
        "127.0.0.2",
        "gpu2",
        "198.51.100.66",
        "}\n  127.0.0.2: {data_address: 198.51.100.66}",
        "../../../home/.bashrc",
    ]


def judge_init(base: Path, out: str) -> Iterator[str]:
    """Its honest host is as it is, whatever the other one tells; and nothing was run."""
    if (base / RAN).exists():
        yield "a word of the node's was run"
    path = base / "head/work/new.yaml"
    if path.exists():
        host = fleet.open(path).select("127.0.0.2").inventory.hosts[0]
        own = {"127.0.0.2", *own_addresses()}
        if host.address != "127.0.0.2" or host.data_address not in (None, *own) or host.activate or host.proxy_jump:
            yield f"the inventory has of the other host: {host}"


def own_addresses() -> set[str]:
    shown = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True, timeout=60).stdout)
    return {each["local"] for link in shown for each in link["addr_info"]} | {socket.gethostname()}


def judge_copies(base: Path, out: str) -> Iterator[str]:
    """The other node of a broadcast has all of it, and is said to have it."""
    large, there = base / "head/work/large", base / "nodes/gpu2/data/large"
    for path in large.iterdir():
        with contextlib.suppress(OSError):
            if hashlib.sha256((there / path.name).read_bytes()).digest() == hashlib.sha256(path.read_bytes()).digest():
                continue
        yield f"gpu2 has no {path.name}"
    yield from judge_other(base, out)


def judge_other(base: Path, out: str) -> Iterator[str]:
    """A JSON document has of the honest host what that said."""
    found = host_of(out, "gpu2")
    if found is not None and not found["ok"] and "gpu1" not in str(found["error"]):
        yield f"it says of gpu2: {found['error']}"


def host_of(out: str, host: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, KeyError, IndexError):
        found = json.loads(out.strip().splitlines()[-1])["hosts"].get(host)
        return found if isinstance(found, dict) else None
    return None


def judge_ps(base: Path, out: str) -> Iterator[str]:
    """gpu2's run is what gpu2 says of it: done, on gpu2 alone."""
    yield from judge_other(base, out)
    own = [path.name for path in (base / "nodes/gpu2/.fleet/runs").glob("*-*-*-*") if path.is_dir()]
    with contextlib.suppress(ValueError, IndexError):
        rows = [row for row in json.loads(out.strip().splitlines()[-1])["runs"] if row["run"] in own]
        for row in rows:
            if (row["state"], row["nodes"].get("gpu2", {}).get("state"), row["script"]) != ("done", "exited", "./job"):
                yield f"it says of gpu2's run: {row['state']}, {row['script']!r}, {row['nodes']}"
        if len(rows) != len(own):
            yield f"it lists {len(rows)} of gpu2's {len(own)} runs"


def of_runs(base: Path) -> list[str]:
    """The ids of gpu2's runs, and what else may be taken for it."""
    return [*(path.name for path in (base / "nodes/gpu2/.fleet/runs").glob("*-*-*-*")), *words_of(base)]


LAUNCH_THERE = ["launch", "-w", "gpu2", "--engine", "command", "--grace", "1", "./job"]
Row = tuple[
    Callable[[Path, random.Random], list[list[str]]] | None,
    Callable[[Path], list[str]],
    Callable[[Path, str], Iterator[str]],
]
# by verb of hostile.py: (what it draws, what a liar says, what is wrong afterwards)
ROWS: dict[str, Row] = {
    "gets": (gets, words_of, judge_gets),
    "init-launch": (init_and_launch, words_of, judge_init),
    "copies": (None, of_runs, judge_copies),
    "ps-others": (None, of_runs, judge_ps),
}
