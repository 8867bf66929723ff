"""A rank under fleet is the rank that its own launcher starts by hand over ssh: all that it finds, for each engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.free_port import free_port
from tests.lab.virtual_lab import VirtualLab
from tests.standin import standin_python

PROGRAM = Path(__file__).with_name("finds.py")
TORCH = find_spec("torch")
assert TORCH and TORCH.origin
BIN = Path(TORCH.origin).parents[4] / "bin"  # where torchrun lies, and its interpreter
WORDS = ("finds.py", "--lr", "1e-4", "two words")
ABSENT = "(none)"

# what is another under fleet than by hand -> why. Patterns of whole names
KNOWN = {
    r"\$FLEET_(RUN_ID|RUN_DIR|ATTEMPT|MAX_RESTARTS)": "what the run is, for scripts and for who finds its processes",
    r"\$PYTHONUNBUFFERED": "lines come when they are printed",
    r"\$VIRTUAL_ENV": "the training interpreter's own environment, as if it were activated",
    r"\$MASTER_PORT": "each run has a port of its own",
    r"\$(OLDPWD|_)": "of the shell by hand",
    r"\$SSH_(CLIENT|CONNECTION)": "each connection has a port of its own",
    r"stdin": "/dev/null: nobody types to a rank",
    r"signal at the parent's death": "no rank outlives what notes how it ends",
    r"leads its (session|process group)": "a signal to the launcher's group reaches a rank once",
    r"RLIMIT_RTTIME": "a number of the run's own, too large to limit anything: its processes are found by it",
    r"SigCgt|modules": "faulthandler, armed for a real-time signal by a sitecustomize: 'fleet stacks'",
}
TORCHELASTIC = {r"\$TORCHELASTIC_(RUN_ID|ERROR_FILE)": "the run's id"}
RANK = r"\$(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|NNODES|MASTER_ADDR|MASTER_PORT)"
NODE = r"\$(NODE_RANK|NNODES|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT)"
UNBUFFERED = {r"sys\.stdout": "unbuffered, as under torchrun"}
# a python above the rank has set LC_CTYPE where no locale is set (PEP 538), as torchrun's does by hand
LOCALE = {r"sys\.flags": "utf8_mode, which python turns on where no locale is set"}


class Case(NamedTuple):
    """engine: fleet's. line: by hand. ranks: how many of them fleet starts. own: what is KNOWN of this one only."""

    engine: str
    line: str
    options: tuple[str, ...] = ()
    own: Mapping[str, str] = {}
    ranks: int = 2


CASES = [
    Case("torchrun", "torchrun --nproc-per-node 2 --master-port {port}", own=TORCHELASTIC),
    Case(
        "colossalai",
        "colossalai run --nproc_per_node 2 --master_port {port}",
        own={**TORCHELASTIC, "argv|cmdline": "its launcher makes two words of one that has a space"},
    ),
    Case("deepspeed", "deepspeed --num_gpus 2 --master_port {port}"),
    Case(
        "accelerate",
        "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --main_process_port {port}",
        ("--multi-gpu",),
        {**TORCHELASTIC, r"\$(NODE_RANK|NNODES)": "what fleet gives to ranks that accelerate does not start"},
    ),
    Case(
        "accelerate",
        "accelerate launch --cpu --num_processes 1 --num_machines 1",
        ("--cpu",),
        {RANK: "fleet starts these ranks", "cmdline": "python -u, as under torchrun", **UNBUFFERED},
        ranks=1,
    ),
    Case("command", "python", own={RANK: "ranks know who they are", **UNBUFFERED, **LOCALE}),
    Case("command", "python", ("--per", "node"), {NODE: "for a launcher in it", **UNBUFFERED, **LOCALE}, ranks=1),
]


def found(lab: VirtualLab) -> list[dict[str, Any]]:
    """What each rank wrote, by rank; it is not there any more."""
    said = lab.sh(lab.names[0], "cd ~/byhand && for file in found-*.json; do cat $file; echo; done && rm found-*.json")
    return [json.loads(line) for line in said.splitlines()]


def by_hand(lab: VirtualLab, line: str) -> list[dict[str, Any]]:
    line = f"{line.format(port=free_port())} {shlex.join(WORDS)}"
    line = f"cd ~/byhand && export DS_ACCELERATOR=cpu PATH={BIN}:$PATH && {line}"
    ssh = ["ssh", "-F", str(lab.home / ".ssh/config"), "-o", "BatchMode=yes", lab.names[0], line]
    done = subprocess.run(ssh, input="", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return found(lab)


def by_fleet(lab: VirtualLab, folder: Path, case: Case) -> list[dict[str, Any]]:
    words = ("python", *WORDS) if case.engine == "command" else WORDS
    line = f"hosts: {{{lab.names[0]}: {{address: {lab.address(lab.names[0])}, user: root, slots: {case.ranks}}}}}"
    (folder / "fleet.yaml").write_text(f"defaults: {{python: {BIN}/python, workdir: ~/byhand}}\n{line}\n")
    options = ("--engine", case.engine, "--env", "DS_ACCELERATOR=cpu", *case.options)
    lab.fleet("-i", "fleet.yaml", "launch", *options, *words, cwd=folder, check=True)
    return found(lab)


def of_engine(case: Case) -> Any:
    """A case of pytest's. `python` is the only launcher by hand that costs nothing."""
    marks = [pytest.mark.real] * (case.engine != "command")
    return pytest.param(case, marks=marks, id=case.line.partition(" {")[0])


@pytest.mark.parametrize("case", [of_engine(case) for case in CASES])
def test_a_rank_finds_what_it_finds_by_hand(lab: VirtualLab, tmp_path: Path, case: Case) -> None:
    lab.enrol()
    lab.inside(lab.names[0], "sh", "-c", "mkdir -p ~/byhand && cat > ~/byhand/finds.py", stdin=PROGRAM.read_bytes())
    hand, fleet = by_hand(lab, case.line), by_fleet(lab, tmp_path, case)
    assert len(fleet) == case.ranks and hand
    known = {**KNOWN, **case.own}
    seen = set[str]()
    for mine, theirs in zip(fleet, hand * 2, strict=False):
        for name in sorted({*mine, *theirs}):
            values = theirs.get(name, ABSENT), mine.get(name, ABSENT)
            why = [pattern for pattern in known if re.fullmatch(pattern, name)]
            assert values[0] == values[1] or why, f"{name}: {values[0]} by hand, {values[1]} under fleet"
            seen.update(why if values[0] != values[1] else ())
    assert seen >= case.own.keys(), "what is another no more"


# what a launcher imports, and what lies in checkouts of them
TRAPS = ("queue", "types", "six", "platform", "random", "torch", "deepspeed", "accelerate", "colossalai", "datasets")
ALIKE = 'import os, sys; print(sys.argv[1:], sys.path[0], os.getcwd(), os.environ["PWD"])'


REAL = [
    pytest.param(f"{BIN}/python", engine, marks=pytest.mark.real)
    for engine in ("torchrun", "accelerate", "deepspeed", "colossalai")
]
STANDIN = [(standin_python(), "torchrun"), (standin_python(), "command")]


@pytest.mark.parametrize(("python", "engine"), [*STANDIN, *REAL])
def test_what_lies_in_the_workdir_is_nothing_to_the_launcher(
    lab: VirtualLab, tmp_path: Path, python: str, engine: str
) -> None:
    """A link leads there: PWD has its name, as by hand."""
    lab.enrol()
    names = " ".join(TRAPS)
    make = f"""rm -rf ~/real ~/traps && mkdir ~/real && ln -s real ~/traps && cd ~/traps
    for name in {names}; do mkdir $name; echo 'raise SystemExit("not yours")' | tee $name/__init__.py > $name.py; done
    cat > alike.py"""
    for host in lab.names[:2]:
        lab.inside(host, "sh", "-c", make, stdin=ALIKE.encode())
    hosts = ", ".join(f"{host}: {{address: {lab.address(host)}}}" for host in lab.names[:2])
    defaults = f"{{python: {python}, workdir: ~/traps, user: root, slots: 1}}"
    (tmp_path / "fleet.yaml").write_text(f"defaults: {defaults}\nhosts: {{{hosts}}}\n")
    options = ["--engine", engine, "--env", "DS_ACCELERATOR=cpu", *(["--cpu"] if engine == "accelerate" else [])]
    words = ["python", "alike.py"] if engine == "command" else ["alike.py"]
    lab.fleet("-i", "fleet.yaml", "launch", *options, *words, "$PWD", cwd=tmp_path, check=True)
    said = [path.read_text().splitlines()[-1] for path in tmp_path.glob("runs/*-*/*/rank*.out")]
    local = ["--local_rank=0"] * (engine == "deepspeed")
    assert said == [f"{[*local, '$PWD']} /root/real /root/real /root/traps"] * 2
