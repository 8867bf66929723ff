"""`fleet build`: a wheel, built on one node for the whole fleet, then installed on every node."""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fleet.errors import ConnectError, FleetError, HostFailed, PreflightError, UsageError
from fleet.events import Notice, Output, Started
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops import sync, wheels
from fleet.ops.build import judge
from fleet.ops.build.source import DEEPSPEED, check_tree, fetch_deepspeed
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.rules.build_log import first_error, remedy
from fleet.transport.base import Session
from fleet.transport.program import Program, call

LOOK_SECONDS = 30.0
SILENCE_SECONDS = 30.0
LOG_TAIL = 1 << 20
OP = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class BuildOptions:
    """what: "deepspeed" or a path. source: deepspeed's own tree. arch: "auto" or capabilities. ops: deepspeed's, ()
    chooses. on: the host that builds, None the first. cpu: as if no host had a GPU. env: literal, for the build.
    builds_dir: logs and wheels on the head."""

    what: str
    version: str | None = None
    source: Path | None = None
    arch: str = "auto"
    ops: tuple[str, ...] = ()
    on: str | None = None
    cpu: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    install: bool = True
    builds_dir: Path = Path("builds")
    import_seconds: float = wheels.IMPORT_SECONDS


@dataclass(frozen=True)
class BuildPlan:
    """tree: the source on the head, None: deepspeed's sdist of `version`. host: who builds. arch: () means auto."""

    name: str
    tree: Path | None
    version: str | None
    host: Host
    arch: tuple[str, ...]
    ops: tuple[str, ...]

    @property
    def deepspeed(self) -> bool:
        return self.name == "deepspeed"

    def describe(self) -> dict[str, Any]:
        source = str(self.tree) if self.tree else f"deepspeed=={self.version}, from pip's index on this machine"
        steps = ["compare the toolchains, and the GPUs of all hosts", f"carry the source to {self.host.name}",
                 "python -m pip wheel --no-deps --no-build-isolation there", "bring the wheel back, install it"]
        return {"what": self.name, "source": source, "on": self.host.name, "arch": list(self.arch) or "auto",
                "ops": list(self.ops), "steps": steps}


def make_plan(inventory: Inventory, options: BuildOptions) -> BuildPlan:
    """Who builds what; UsageError for what cannot be."""
    names = inventory.names
    if options.on is not None and options.on not in names:
        raise UsageError(f"--on: no host '{options.on}' is selected", hint="one of " + ", ".join(names[:8]))
    host = inventory.host(options.on) if options.on else inventory.hosts[0]
    arch = judge.given_arch(options.arch)
    for op in options.ops:
        if not OP.fullmatch(op):
            raise UsageError(f"--ops: '{op}' is no op", hint="names as deepspeed's ds_report lists them: cpu_adam")
    if options.what == "deepspeed":
        if options.source and options.version:
            raise UsageError("--version and --source exclude each other", hint="a tree has its own version")
        tree = check_tree(options.source) if options.source else None
        return BuildPlan("deepspeed", tree, None if tree else options.version or DEEPSPEED, host, arch, options.ops)
    if options.source or options.version or options.ops:
        raise UsageError("--source, --version and --ops belong to 'fleet build deepspeed'",
                         hint="for any other tree: fleet build PATH --env NAME=VALUE")
    tree = check_tree(Path(options.what))
    return BuildPlan(tree.name, tree, None, host, arch, ())


def execute(inventory: Inventory, plan: BuildPlan, options: BuildOptions, runtime: Runtime) -> Report:
    """Look, judge, carry, build, fetch, install. The report's data: {"build", "on", "wheel", "sha256", "log", "arch",
    "ops"}; its results are those of the install, or of the host on which the build failed."""
    facts_of = _look(inventory, runtime)
    silent = tuple(r for r in facts_of if not r.ok)
    if silent:
        return Report("build", facts_of, exit_code_of(facts_of))
    facts = {r.host: r.data["facts"] for r in facts_of}
    arch = () if options.cpu else plan.arch or judge.fleet_arch(facts)
    errors = judge.toolchain(facts[plan.host.name], arch, needs_torch=plan.deepspeed)
    if errors:
        return _failed(plan, PreflightError(
            "; ".join(e.message for e in errors), host=plan.host.name, kind="toolchain",
            hint="; ".join(dict.fromkeys(e.hint for e in errors if e.hint))), {})
    env, ops = build_env(plan, arch, options.env)
    tree = plan.tree or fetch_deepspeed(plan.version or DEEPSPEED, runtime)
    build_id = time.strftime("%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:4]
    folder = _own_folder(options.builds_dir) / build_id
    folder.mkdir(parents=True)
    said: dict[str, Any] = {"build": build_id, "on": plan.host.name, "log": str(folder / "build.log"),
                            "arch": list(arch), "ops": list(ops)}
    one = Inventory((plan.host,), env=inventory.env, unselected=inventory.hosts + inventory.unselected)
    try:
        there = _carry(one, plan, tree, runtime)
        path, digest = _build(one, plan, there, env, folder, build_id, runtime)
        _check_ops(path, ops, plan)
    except FleetError as error:
        return _failed(plan, error, said)
    said |= {"wheel": str(path), "sha256": digest}
    if not options.install:
        return Report("build", (Result(plan.host.name, True, 0),), 0, said)
    done = wheels.execute(inventory, wheels.make_plan(inventory, path),
                          wheels.WheelsOptions(options.import_seconds), runtime)
    return Report("build", done.results, done.exit_code, {**done.data, **said})


def build_env(plan: BuildPlan, arch: Sequence[str], env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables of the build, and deepspeed's ops among them."""
    values: dict[str, str] = {"TORCH_CUDA_ARCH_LIST": ";".join(arch)} if arch else {}
    ops: tuple[str, ...] = ()
    if plan.deepspeed:
        ops = plan.ops or (("cpu_adam", "fused_adam", "utils") if arch else ("cpu_adam",))
        values |= {"DS_BUILD_OPS": "0", **{f"DS_BUILD_{op.upper()}": "1" for op in ops}}
        if not arch:
            values["DS_ACCELERATOR"] = "cpu"
    return values | dict(env), ops


def _failed(plan: BuildPlan, error: FleetError, said: Mapping[str, Any]) -> Report:
    error.host = error.host or plan.host.name
    result = Result(plan.host.name, False, error=error)
    return Report("build", (result,), exit_code_of((result,)), said)


def _own_folder(builds: Path) -> Path:
    """builds/ on the head; it keeps itself out of git and of code syncs."""
    try:
        builds.mkdir(parents=True, exist_ok=True)
        if not (builds / ".gitignore").exists():
            (builds / ".gitignore").write_text("*\n")
    except OSError as error:
        raise UsageError(f"cannot write to {builds}: {error.strerror}",
                         hint="choose a folder with --builds-dir") from error
    return builds.resolve()


def _look(inventory: Inventory, runtime: Runtime) -> tuple[Result, ...]:
    def task(session: Session, host: Host) -> Result:
        spec = {"python": host.python, "activate": host.activate, "env": inventory.env_for(host),
                "deadline": LOOK_SECONDS}
        answer = call(session, "toolchain", spec, timeout=LOOK_SECONDS + 30, silence=SILENCE_SECONDS,
                      cancel=runtime.cancel)
        if "facts" not in answer:
            raise ConnectError("the node gave no answer", host=host.name, kind="protocol")
        return Result(host.name, True, 0, data={"facts": answer["facts"]})

    return on_each(inventory.hosts, runtime, task, what="looking at its toolchain")


def _carry(one: Inventory, plan: BuildPlan, tree: Path, runtime: Runtime) -> str:
    """The source on the node that builds, as code goes there; a second build sends what changed."""
    key = hashlib.sha256(str(tree).encode()).hexdigest()[:12]
    there = f"~/.fleet/sources/{re.sub(r'[^A-Za-z0-9._-]', '_', plan.name)}-{key}"
    report = sync.execute(one, sync.SyncPlan(tree, {plan.host.name: there}, whole=plan.tree is None), runtime)
    if report.results[0].error:
        raise report.results[0].error
    return there


def _build(
    one: Inventory, plan: BuildPlan, there: str, env: Mapping[str, str], folder: Path, build_id: str, runtime: Runtime
) -> tuple[Path, str]:
    """Run it there; (the wheel here, its sha256). The log is in the folder, whatever happens."""
    host = plan.host
    spec = {"python": host.python, "activate": host.activate, "env": {**one.env_for(host), **env}, "source": there,
            "id": build_id, "mark": f"build-{build_id}", "grace": 2.0}
    log_path = folder / "build.log"
    runtime.emit(Notice("info", f"building on {host.name}, log in {log_path}"))
    wheel = _Incoming(folder)
    failure: Mapping[str, Any] | None = None

    def task(session: Session, host: Host) -> Result:
        nonlocal failure
        runtime.emit(Started(host.name, "building"))
        with log_path.open("wb", buffering=0) as log, Program(session, "build", spec) as program:
            log.write("".join(f"{k}={v} " for k, v in sorted(env.items())).encode() + b"\n")
            for frame in program.frames(silence=SILENCE_SECONDS, cancel=runtime.cancel):
                if frame.kind == "O" and frame.stream == 0:
                    log.write(frame.payload)
                    runtime.emit(Output(host.name, "stderr", frame.payload))
                elif frame.kind == "O":
                    wheel.write(frame.payload)
                elif frame.kind == "J":
                    message = frame.json()
                    if message["event"] == "built":
                        wheel.begin(message)
                    elif message["event"] == "failed":
                        failure = message
        return Result(host.name, True, 0)

    try:
        (result,) = on_each((host,), runtime, task, what="building")
        if result.error:
            raise result.error
        if failure is not None:
            with log_path.open("rb") as f:
                f.seek(max(0, log_path.stat().st_size - LOG_TAIL))
                text = f.read().decode("utf-8", "replace")
            why = first_error(text)
            raise HostFailed(f"{failure['message']}: {why}" if why else failure["message"], host=host.name,
                             kind="build", hint=failure["hint"] or remedy(text) or f"read {log_path}")
        return wheel.finish(host.name)
    finally:
        wheel.drop()


class _Incoming:
    """A wheel on its way into a folder: it has its name only when all of it is there and its digest is right."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._told: Mapping[str, Any] = {}
        self._digest = hashlib.sha256()

    def begin(self, told: Mapping[str, Any]) -> None:
        self._told = told
        self._file = (self._folder / ".wheel").open("wb")

    def write(self, data: bytes) -> None:
        assert self._file
        self._digest.update(data)
        self._file.write(data)

    def finish(self, host: str) -> tuple[Path, str]:
        name = self._told.get("file", "")
        if self._file is None or self._digest.hexdigest() != self._told["sha256"] or "/" in name:
            raise ConnectError("the wheel did not come back whole", host=host, kind="protocol")
        self._file.flush()
        os.fsync(self._file.fileno())
        path = self._folder / name
        (self._folder / ".wheel").rename(path)
        return path, self._digest.hexdigest()

    def drop(self) -> None:
        if self._file is not None:
            self._file.close()
            (self._folder / ".wheel").unlink(missing_ok=True)


def _check_ops(path: Path, ops: Sequence[str], plan: BuildPlan) -> None:
    """deepspeed drops an op that it does not know, or cannot compile, in silence: its wheel tells what is in it."""
    if not ops:
        return
    with zipfile.ZipFile(path) as archive:
        text = archive.read("deepspeed/git_version_info_installed.py").decode("utf-8", "replace")
    found = dict(re.findall(r"'(\w+)': (True|False)", text.partition("installed_ops=")[2].splitlines()[0]))
    lacking = [op for op in ops if found.get(op) != "True"]
    if lacking:
        raise HostFailed(f"the wheel lacks {', '.join(lacking)}", host=plan.host.name, kind="build",
                         hint=f"deepspeed knows {', '.join(sorted(found))}; the log tells why one was left out")
