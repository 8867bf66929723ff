"""The table of who is asked to stop: launcher x form of the rank x where it saves its work x what befalls the run x how
long the save lasts x grace. A cell says what must come of it; play() tries it on a node, with real processes.

A rank notes in a file what it receives, that it saves, and that it has saved.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import fleet
from fleet.engines.accelerate import Accelerate
from fleet.engines.base import World
from fleet.engines.command import AnyCommand
from fleet.engines.deepspeed import DeepSpeed
from fleet.engines.torchrun import Torchrun
from fleet.model import Host, Job, Node
from tests.free_port import free_port
from tests.node.nodes import Running, final, folder_of, marked, read_json, supervise_spec, until
from tests.standin import standin_python

STANDINS, REAL = ("command", "torchrun"), ("real torchrun", "deepspeed", "accelerate")
FORMS = ("plain", "script", "job", "pipe", "loader", "thread")
SAVES = ("KeyboardInterrupt", "SIGTERM", "finally", "atexit", "trap")
EVENTS = ("Ctrl-C", "twice", "stop", "failure", "stall", "scancel")
LASTS = {"short": 0.1, "long": 0.6, "ever": 100.0}  # of the grace: with room for a busy machine
GRACES = (5.0, 20.0, 60.0)
ENGINES = {
    "command": AnyCommand(),
    "torchrun": Torchrun(),
    "real torchrun": Torchrun(),
    "deepspeed": DeepSpeed(),
    "accelerate": Accelerate(),
}
OPTIONS = {"accelerate": {"cpu": True}, "deepspeed": {"no-local-rank": True}}
PIECES = ("rank.py", "drain.py", "watch.py", "spawn.py", "console.py")
FILES = {name: (Path(fleet.__file__).parent / "node/run/rank" / name).read_text() for name in PIECES}
INTERRUPTS = ("KeyboardInterrupt", "finally", "atexit")  # what runs where Python itself has a SIGINT

TRAIN = """
import atexit, multiprocessing, os, signal, sys, threading, time
saves, form, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
rank = os.environ["RANK"]

def note(what):
    with open("notes" + rank, "a") as f:
        f.write(what + "\\n")

def load():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a DataLoader's worker, which leaves it to its parent
    while True:
        time.sleep(0.1)

def save():
    note("saving")
    print("saving", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(not worker.is_alive() for worker in workers):
            raise RuntimeError("DataLoader worker is killed by signal")
        print("still saving", flush=True)  # into a pipe that must not be broken
        time.sleep(0.05)
    note("saved")

def handler(signum, frame):
    note("SIGTERM")
    save()
    sys.exit(0)

def train():
    while not over:
        if rank == "1" and os.path.exists("fail"):
            os._exit(3)
        time.sleep(0.02)

over, workers = False, []
if form == "loader":
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=load, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
if saves == "SIGTERM":
    signal.signal(signal.SIGTERM, handler)
if saves == "atexit":
    atexit.register(save)
thread = threading.Thread(target=train)
if form == "thread":
    thread.start()
note("up")
try:
    while thread.is_alive():
        thread.join(0.1)
    train()
except KeyboardInterrupt:
    note("SIGINT")
    over = True
    if saves == "KeyboardInterrupt":
        save()
    else:
        raise
finally:
    if saves == "finally":
        save()
"""
# a script whose own trap saves, in steps, as one that copies files does
TRAP = """trap save INT TERM
save() { trap '' INT TERM; note saving; for i in $(seq %d); do sleep 0.1; done; note saved; exit; }
note() { echo $1 >> notes$RANK; }
note up
while :; do if [ $RANK = 1 ] && [ -e fail ]; then exit 3; fi; sleep 0.1; done
"""
PYTHON = f"{sys.executable} train.py"
SCRIPTS = {
    "script": f'#!/bin/bash\nset -e\n{PYTHON} "$@"\necho after\n',
    "job": f'#!/bin/sh\n{PYTHON} "$@" &\nwait $!\n',  # as it leaves a SIGINT to nobody
    "pipe": f'#!/bin/bash\nset -o pipefail\n{PYTHON} "$@" 2>&1 | tee -a log$RANK\n',
}


@dataclass(frozen=True)
class Cell:
    """One of the table."""

    launcher: str
    form: str
    saves: str
    event: str
    lasts: str
    grace: float

    @property
    def seconds(self) -> float:
        return LASTS["ever" if self.event == "twice" else self.lasts] * self.grace

    @property
    def first(self) -> str:
        """Returns what a rank is to receive first."""
        return "SIGINT" if self.event in ("Ctrl-C", "twice") and self.form != "job" else "SIGTERM"

    @property
    def begins(self) -> bool:
        """Returns whether it begins to save its work."""
        return self.saves == "trap" or (self.saves in INTERRUPTS) == (self.first == "SIGINT")

    @property
    def late(self) -> bool:
        """Returns whether a SIGTERM comes first at half of the grace: a background job of a shell ignores SIGINT."""
        return self.form == "job" and self.event == "Ctrl-C" and self.saves != "trap"

    @property
    def saved(self) -> bool:
        """Returns whether it is to have saved it: at half of the grace a SIGTERM ends what does not handle one."""
        most = 1.0 if self.first == "SIGTERM" or self.saves == "trap" else 0.5
        return self.begins and self.event != "twice" and LASTS[self.lasts] < (0.5 if self.late else most)

    @property
    def killed(self) -> bool:
        """Returns whether a SIGKILL is to end it: nothing that came before did."""
        if self.event == "twice":
            return self.begins or self.form == "job"
        return self.begins and not self.saved and (self.first == "SIGTERM" or self.saves == "trap")


def cells(launchers: Sequence[str], graces: Sequence[float]) -> Iterator[Cell]:
    for cell in itertools.starmap(Cell, itertools.product(launchers, FORMS, SAVES, EVENTS, LASTS, graces)):
        if cell.saves != "trap" or cell.form in ("script", "pipe"):  # a shell's
            yield cell


def draw(seed: int, launchers: Sequence[str], graces: Sequence[float], most: int | None = None) -> list[Cell]:
    """Returns cells in which each two values meet, those with something to save first, or the first `most` of them."""
    left = list(cells(launchers, graces))
    random.Random(seed).shuffle(left)
    todo = {pair for cell in left for pair in pairs(cell)}
    drawn: list[Cell] = []
    while todo and (most is None or len(drawn) < most):
        new = [(len(pairs(cell) & todo), cell) for cell in left]
        drawn.append(max(new, key=lambda it: it[0] and it[0] + 4 * it[1].begins)[1])
        todo -= pairs(drawn[-1])
    return drawn


def pairs(cell: Cell) -> set[frozenset[tuple[str, object]]]:
    named = zip((field.name for field in fields(cell)), astuple(cell), strict=True)
    return {frozenset(two) for two in itertools.combinations(named, 2)}


def start(cell: Cell, home: Path, run: str) -> dict[str, object]:
    """Returns the spec of two ranks of such a cell, by its launcher's own plan."""
    (home / "train.py").write_text(TRAIN)
    for name, text in SCRIPTS.items():
        (home / f"{name}.sh").write_text(TRAP % round(cell.seconds * 10) if cell.saves == "trap" else text)
        (home / f"{name}.sh").chmod(0o755)
    args = (cell.saves, cell.form, str(cell.seconds))
    script = f"./{cell.form}.sh" if cell.form in SCRIPTS else "train.py"
    python = standin_python() if cell.launcher == "torchrun" else sys.executable
    node = Node(Host("n1", "127.0.0.1"), 0, 2, 0)
    job = Job(script, args, cell.launcher, kind="program" if cell.form in SCRIPTS else "script")
    if cell.launcher == "command" and cell.form not in SCRIPTS:
        job = replace(job, script=sys.executable, args=("-u", "train.py", *args))
    engine = ENGINES[cell.launcher]
    job = replace(job, engine_options=OPTIONS.get(cell.launcher, {}))
    begun = engine.start(engine.prepare(job, home), World(run, (node,), "127.0.0.1", free_port()), node, python)
    argv = [word if isinstance(word, str) else word.as_spec() for word in begun.argv]
    files = {**FILES, **engine.prepare(job, home).files, "command.json": begun.command_file()}
    env = {**begun.env, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return supervise_spec(run, argv, files=files, env=env, ranks=[0, 1], grace=cell.grace)


def notes(home: Path, rank: int) -> list[str]:
    path = home / f"notes{rank}"
    return path.read_text().split() if path.exists() else []


def befall(cell: Cell, home: Path, run: str, node: Running) -> None:
    """Does what the event does to a node."""
    stop = {"op": "stop", "grace": cell.grace, "reason": cell.event, "end": None}
    if cell.event == "failure":
        (home / "fail").touch()
    elif cell.event == "scancel":
        os.kill(read_json(folder_of(home, run) / "pid")["pid"], signal.SIGTERM)
    else:
        node.send({**stop, "interrupt": cell.event in ("Ctrl-C", "twice")})
    if cell.event == "twice":
        if cell.begins:
            until(lambda: "saving" in notes(home, 0) + notes(home, 1))
        else:
            until(lambda: read_json(folder_of(home, run) / "status.json")["state"] != "running")
        node.send({**stop, "grace": 0.0})


def play(cell: Cell, home: Path, run: str) -> list[str]:
    """Returns what of a cell is not as it must be."""
    home.mkdir()
    with Running("run.supervise run.follow", start(cell, home, run), home) as node:
        assert [frame.json()["event"] for frame in node.frames() if frame.kind == b"J"] == ["started"]
        node.send({"run": run, "offsets": {}})
        until(lambda: "up" in notes(home, 0) and "up" in notes(home, 1), 120.0)
        if cell.form == "pipe" and cell.saves != "trap":
            until(lambda: (home / "log0").exists() and (home / "log1").exists())
        befall(cell, home, run, node)
        status = final(home, run, cell.grace + 60.0)
    folder = folder_of(home, run)
    until(lambda: not marked(run))
    records = {rank: read_json(folder / f"rank{rank}.json") for rank in (0, 1)}
    wrong: list[str] = []
    ranks = (0,) if cell.event == "failure" else (0, 1)
    for rank in ranks:
        found = notes(home, rank)
        if (found.count("saved") == 1) != cell.saved or found.count("saving") > 1:
            wrong.append(f"rank {rank}: saved: {found.count('saved')}, to be {cell.saved}")
        if found.count("SIGTERM") > 1 or found.count("SIGINT") > 1:
            wrong.append(f"rank {rank}: a signal came twice")
        if (rank in status.get("killed", ())) != cell.killed and not (cell.event == "twice" and not cell.begins):
            wrong.append(f"rank {rank}: killed {status.get('killed')}, to be {cell.killed}")
    lasted = status["time"] - status["began"]
    least = cell.grace if cell.killed and cell.event != "twice" else cell.seconds if cell.saved else 0.0
    if lasted < least - 0.2 or lasted > (0.0 if cell.event == "twice" else cell.grace) + 20.0:
        wrong.append(f"it took {lasted:.1f} s")
    if status["left"] or status.get("behind"):
        wrong.append(f"left: {status['left']}, {status.get('behind')}")
    if wrong:
        logs = {path.name: path.read_text()[-1500:] for path in folder.iterdir() if path.suffix in (".err", ".log")}
        wrong.append(json.dumps({"notes": [notes(home, 0), notes(home, 1)], "ends": records, "status": status, **logs}))
    return wrong
