"""What a launch is asked for, and the reading of --env, --env-file, --nnodes and run ids."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from fleet.engines.env_file import check_name, read_env_file
from fleet.errors import UsageError
from fleet.inventory.fields import MAX_SLOTS
from fleet.protocol.state import LONGEST_NAME

MAX_VARIABLE = (128 << 10) - 1  # bytes of NAME=VALUE that Linux's exec takes


@dataclass(frozen=True)
class LaunchOptions:
    """How to run a Job. Times in seconds.

    nnodes: take the first N hosts, None all but the spares. least: go on while so many are left; 0: all must be.
    spares: hosts behind those that stand by. nproc: ranks a node: a number is in the Job; "slots" takes the
    inventory's, "gpu" one per GPU, "cpu" one per core, "auto" one per GPU, else one per core. lease: how long nodes go
    on without a head, None for ever. node_timeout: silence after which a node counts as lost. stall_timeout: silence of
    all ranks after which the run is over, None: never. preflight: False starts in spite of findings. force: with sync,
    also over what another folder delivered. detach: leave the run to itself once it runs. share: also beside another
    live run. runs_dir: where runs/RUN is made. cwd: the head's folder, the workdir of hosts that have none.

    grace: seconds between SIGTERM and SIGKILL, None: STOP_GRACE for a stop that was asked for, GRACE after a failure.
    max_log: bytes that a node keeps of a log which the leader has, 0: all.

    For run.json: asked: what fleet.api's launch() was given. typed: the command line that it comes from. repeats: the
    run that this one is to be another of.
    """

    nnodes: int | None = None
    nproc: str = "slots"
    lease: float | None = 120.0
    grace: float | None = None
    node_timeout: float = 15.0
    preflight: bool = True
    sync: bool = False
    runs_dir: Path = Path("runs")
    cwd: str = "."
    force: bool = False
    detach: bool = False
    share: bool = False
    stall_timeout: float | None = None
    spares: int = 0
    asked: Mapping[str, Any] = field(default_factory=dict)
    typed: tuple[str, ...] = ()
    repeats: str | None = None
    least: int = 0
    max_log: int = 0


def new_run_id(script: str, name: str | None, now: float | None = None, token: str | None = None) -> str:
    """`<name or script stem>-YYYYMMDD-HHMMSS-<4 hex>`, only characters that are safe in any file name."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name or PurePosixPath(script).stem).strip("-.")[:LONGEST_NAME] or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stem}-{stamp}-{token or secrets.token_hex(2)}"


def parse_nnodes(given: int | str | None) -> tuple[int | None, int]:
    """(most, least) of `N`, or of `MIN:MAX`: it starts on MAX nodes at most, and goes on while MIN are left. least 0:
    all must be; most None: whatever there is."""
    if given is None:
        return None, 0
    text = str(given)
    low, colon, high = text.partition(":")
    unfit = len(text) > 20 or not low.isdecimal() or int(low) < 1
    if unfit or (colon and (not high.isdecimal() or int(high) < int(low))):
        raise UsageError(f"--nnodes {text}: not a number of nodes", hint="--nnodes 4, or 2:4")
    least, most = int(low), int(high if colon else low)
    return most, least if least != most else 0


def parse_nproc(given: int | str | None) -> tuple[int | None, str]:
    """--nproc-per-node: (number or None, what to count when it is None)."""
    if given is None:
        return None, "slots"
    text = str(given)
    if text in ("auto", "gpu", "cpu"):
        return None, text
    if len(text) > 20 or not text.isdecimal() or not 1 <= int(text) <= MAX_SLOTS:
        raise UsageError(
            f"--nproc-per-node {text}: not a number of ranks", hint=f"a number up to {MAX_SLOTS}, auto, gpu or cpu"
        )
    return int(text), "slots"


def read_env(
    files: Iterable[Path], literal: Iterable[str], expand: Iterable[str], head: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """(values as they are, values the node expands). Later wins: --env-file, then --env; --env-expand over both.

    `K=V` is literal; `K` alone takes the head's value and is an error where the head has none. Messages never
    hold a value.
    """
    values: dict[str, str] = {}
    for path in files:
        values.update(read_env_file(path))
    for item in literal:
        name, equals, value = item.partition("=")
        check_name(name, "--env")
        if not equals and name not in head:
            raise UsageError(f"--env {name}: not set here", hint=f"export {name}, or give --env {name}=VALUE")
        values[name] = value if equals else head[name]
    expanded: dict[str, str] = {}
    for item in expand:
        name, equals, value = item.partition("=")
        check_name(name, "--env-expand")
        if not equals:
            raise UsageError(f"--env-expand {name}: no value", hint=f"--env-expand '{name}=$HOME/data'")
        expanded[name] = value
        values.pop(name, None)
    for name, value in (*values.items(), *expanded.items()):
        size = len(f"{name}={value}".encode("utf-8", "surrogateescape"))
        if size > MAX_VARIABLE:
            said = f"variable {name}: {size} bytes are more than any program can be given, {MAX_VARIABLE}"
            raise UsageError(said, hint="put it into a file, 'fleet sync' brings it there; the variable names the file")
    return values, expanded
