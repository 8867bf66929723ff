"""Runs the node side of a build: reads the toolchains, and builds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from fleet.delivery import mirror
from fleet.each import on_each
from fleet.errors import ConnectError, HostFailed, ProtocolError, Reason
from fleet.events import Notice, Output, Started
from fleet.model import Host, Inventory, Result
from fleet.node.base.files import file_digest, tail_of
from fleet.ops.facts import HasFacts, training
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.build import BuildSpec, BuildStarted, Built, ToolchainFacts, ToolchainSpec
from fleet.protocol.messages.values import Failed
from fleet.protocol.state import HOME, SOURCES
from fleet.requests.sync import Sync
from fleet.rules.build_log import first_error, remedy
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import Program, call

LOOK_SECONDS = 30.0
SILENCE_SECONDS = 30.0
LOCK_SECONDS = 60.0
LOG_TAIL = 1 << 20
MAX_WHEEL_BYTES = 4 << 30
MAX_LOG_BYTES = 1 << 30


def look(inventory: Inventory, runtime: Runtime) -> tuple[Result, ...]:
    """Returns every host's toolchain and GPUs, as HasFacts. Changes nothing."""

    def task(session: Session, host: Host) -> Result:
        spec: ToolchainSpec = {**training(inventory, host), "deadline": LOOK_SECONDS}
        answer = call(
            session,
            "python.toolchain",
            spec,
            ToolchainFacts,
            timeout=LOOK_SECONDS + 30,
            silence=SILENCE_SECONDS,
            cancel=runtime.cancel,
        )
        return Result(host.name, True, 0, answer=HasFacts(answer["facts"]))

    return on_each(inventory.hosts, runtime, task, what="looking at its toolchain")


def carry(one: Inventory, name: str, tree: Path, *, whole: bool, runtime: Runtime) -> str:
    """Copies the source to the node that builds, as `fleet sync` copies code. Returns the source's path on the node."""
    key = hashlib.sha256(str(tree).encode()).hexdigest()[:12]
    there = f"~/{HOME}/{SOURCES}/{re.sub(r'[^A-Za-z0-9._-]', '_', name)}-{key}"
    dests = {one.hosts[0].name: there}
    plan = mirror.Mirror(one.hosts, tree, dests, Sync(force=True, max_delete="all", source_id="build"), whole)
    report = mirror.run(plan, runtime)
    if report.results[0].error:
        raise report.results[0].error
    return there


def build_there(
    one: Inventory, there: str, env: Mapping[str, str], folder: Path, build_id: str, runtime: Runtime
) -> tuple[Path, str]:
    """Builds on the node. Returns (the wheel's path on the head, its sha256). Writes the log to `folder`, also if the
    build fails."""
    host = one.hosts[0]
    trained = training(one, host)
    spec: BuildSpec = {
        **trained,
        "env": {**trained["env"], **env},
        "source": there,
        "id": build_id,
        "mark": f"build-{build_id}",
        "grace": 2.0,
        "wait": LOCK_SECONDS,
    }
    log_path, coming = folder / "build.log", folder / ".wheel"
    runtime.emit(Notice("info", f"building on {host.name}, log in {log_path}"))
    end: Built | Failed | None = None

    def task(session: Session, host: Host) -> Result:
        nonlocal end
        runtime.emit(Started(host.name, "building"))
        with (
            log_path.open("wb", buffering=0) as log,
            coming.open("wb") as wheel,
            Program(session, "python.build", spec) as program,
        ):
            log.write(" ".join(_shown(name, value) for name, value in sorted(env.items())).encode() + b"\n")
            for frame in program.frames(silence=SILENCE_SECONDS, cancel=runtime.cancel):
                if frame.kind == OUTPUT and frame.stream == 0:
                    _add(log, frame.payload, MAX_LOG_BYTES)
                    runtime.emit(Output(host.name, "stderr", frame.payload))
                elif frame.kind == OUTPUT:
                    _add(wheel, frame.payload, MAX_WHEEL_BYTES)
                elif frame.kind == MESSAGE:
                    message = frame.decode(BuildStarted | Built | Failed)
                    end = message if message["event"] != "started" else end
        return Result(host.name, True, 0)

    try:
        (result,) = on_each((host,), runtime, task, what="building")
        if result.error:
            raise result.error
        if end is not None and end["event"] == "failed":
            raise _failure(end, host.name, log_path)
        if end is None or file_digest(str(coming)) != end["sha256"]:
            raise ConnectError("the wheel did not come back whole", host=host.name, kind="protocol")
        return coming.rename(folder / end["file"]), end["sha256"]
    finally:
        coming.unlink(missing_ok=True)


def _add(file: BinaryIO | FileIO, data: bytes, most: int) -> None:
    if file.tell() + len(data) > most:
        raise ProtocolError("a log or a wheel that has no end")
    file.write(data)


def _failure(end: Failed, host: str, log: Path) -> HostFailed:
    with log.open("rb") as f:
        text = tail_of(f, LOG_TAIL)
    why = first_error(text)
    return HostFailed(
        Reason.of_node(end["message"] + (f": {why}" if why else "")),
        host=host,
        kind="build",
        hint=end["hint"] or remedy(text),
    )


def _shown(name: str, value: str) -> str:
    """Returns a variable for the log: with its value if it is one of the build's own, or only its name if the user set
    it."""
    return f"{name}={value}" if name.startswith(("DS_", "TORCH_CUDA_")) else name
