"""Plans and runs `fleet build`: one node builds a wheel, which is then installed on every node."""

from __future__ import annotations

import re
import shlex
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet import own
from fleet.answers.sync import Built, Wheels
from fleet.errors import FleetError, HostFailed, PreflightError, UsageError
from fleet.events import Notice
from fleet.inventory.select import host_named
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.node.base.errors import on_os_error
from fleet.ops import wheels
from fleet.ops.build import judge
from fleet.ops.build.node import build_there, carry, look
from fleet.ops.build.source import DEEPSPEED, check_tree, fetch_deepspeed
from fleet.ops.facts import HasFacts
from fleet.ops.plans import Line, OnHosts
from fleet.requests.hosts import Build
from fleet.requests.sync import SyncWheels
from fleet.runtime import Runtime

OP = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class BuildPlan(OnHosts):
    """Describes a build. inventory: the hosts that get the wheel. tree: the source on the head, or None for deepspeed's
    sdist of `version`. host: the host that builds. arch: GPU architectures such as "8.0", or () for those of all
    hosts."""

    request: Build
    name: str
    tree: Path | None
    version: str | None
    host: Host
    arch: tuple[str, ...]

    @property
    def deepspeed(self) -> bool:
        return self.name == "deepspeed"

    def describe(self) -> dict[str, Any]:
        source = str(self.tree) if self.tree else f"deepspeed=={self.version}, from pip's index on this machine"
        env, ops = build_env(self, () if self.request.cpu else self.arch or ("auto",), {})
        argv = [
            self.host.python or "python3",
            "-m",
            "pip",
            "wheel",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "SOURCE",
        ]
        return {
            "what": self.name,
            "source": source,
            "on": self.host.name,
            "ops": list(ops),
            "env": env,
            "argv": argv,
            "arch": "cpu" if self.request.cpu else list(self.arch) or "auto",
        }

    def lines(self) -> Iterator[Line]:
        description = self.describe()
        yield f"would build {self.name} on {self.host.name}, from {description['source']}"
        arch = "cpu" if self.request.cpu else ", ".join(self.arch) or "the GPUs that all hosts have"
        yield f"  for {arch}"
        if description["ops"]:
            yield f"  ops: {', '.join(description['ops'])}"
        env = "".join(f"{name}={shlex.quote(value)} " for name, value in description["env"].items())
        yield f"  {env}{shlex.join(description['argv'])}"
        yield "and install it on every host" if self.request.install else "and install it nowhere"


def plan(inventory: Inventory, request: Build) -> BuildPlan:
    """Returns the plan. Raises UsageError for a source that cannot be built."""
    host = inventory.hosts[0] if request.on is None else host_named(inventory, "--on", request.on)
    arch = judge.given_arch(request.arch)
    for op in request.ops:
        if not OP.fullmatch(op):
            raise UsageError(f"--ops: '{op}' is no op", hint="names as deepspeed's ds_report lists them: cpu_adam")
    if request.what == "deepspeed":
        tree = check_tree(Path(request.source)) if request.source else None
        version = None if tree else request.version or DEEPSPEED
        return BuildPlan(
            inventory=inventory, request=request, name="deepspeed", tree=tree, version=version, host=host, arch=arch
        )
    tree = check_tree(Path(request.what))
    return BuildPlan(
        inventory=inventory, request=request, name=tree.name, tree=tree, version=None, host=host, arch=arch
    )


def run(plan: BuildPlan, runtime: Runtime) -> Report:
    """Checks the toolchains, copies the source, builds, fetches the wheel and installs it.

    The report's data: {"build", "on", "wheel", "sha256", "log", "arch", "ops"}. Its results are those of the
    installation, or of the host on which the build failed."""
    inventory, request = plan.inventory, plan.request
    facts_of = look(inventory, runtime)
    silent = tuple(r for r in facts_of if not r.ok)
    if silent:
        return Report(
            "build", tuple(Result(r.host, r.ok, r.exit_status, error=r.error) for r in facts_of), exit_code_of(facts_of)
        )
    facts = {r.host: r.read(HasFacts).facts for r in facts_of}
    arch = () if request.cpu else plan.arch or judge.fleet_arch(facts)
    errors = judge.toolchain(facts[plan.host.name], arch, needs_torch=plan.deepspeed)
    if errors:
        return _failed(
            plan,
            PreflightError(
                "; ".join(e.message for e in errors),
                host=plan.host.name,
                kind="toolchain",
                hint="; ".join(dict.fromkeys(e.hint for e in errors if e.hint)),
            ),
            Built(),
        )
    newer = judge.older_glibc(facts, plan.host.name)
    if newer:
        runtime.emit(Notice("warning", newer, host=plan.host.name))
    env, ops = build_env(plan, arch, request.env or {})
    tree = plan.tree or fetch_deepspeed(plan.version or DEEPSPEED, runtime)
    build_id = time.strftime("%Y%m%d-%H%M%S-") + uuid.uuid4().hex[:4]
    folder = _own_folder(Path(request.builds_dir)) / build_id
    folder.mkdir(0o700, parents=True)
    built = Built(build=build_id, on=plan.host.name, log=str(folder / "build.log"), arch=list(arch), ops=list(ops))
    one = inventory.only([plan.host])
    try:
        there = carry(one, plan.name, tree, whole=plan.tree is None, runtime=runtime)
        path, digest = build_there(one, there, env, folder, build_id, runtime)
        check_ops(path, ops, plan.host.name)
    except FleetError as error:
        return _failed(plan, error, built)
    built = replace(built, wheel=str(path), sha256=digest)
    if not request.install:
        return Report("build", (Result(plan.host.name, True, 0),), 0, answer=built)
    done = wheels.run(
        wheels.plan(inventory, SyncWheels(path, import_timeout=request.import_timeout, yes=True)), runtime
    )
    return Report("build", done.results, done.exit_code, answer=replace(built, wheels=done.read(Wheels).wheels))


def build_env(plan: BuildPlan, arch: Sequence[str], env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the build's environment variables, and deepspeed's ops (compiled extensions) that these variables
    request."""
    values: dict[str, str] = {"TORCH_CUDA_ARCH_LIST": ";".join(arch)} if arch else {}
    ops: tuple[str, ...] = ()
    if plan.deepspeed:
        ops = tuple(plan.request.ops) or (("cpu_adam", "fused_adam", "utils") if arch else ("cpu_adam",))
        values |= {"DS_BUILD_OPS": "0", **{f"DS_BUILD_{short(op).upper()}": "1" for op in ops}}
        if not arch:
            values["DS_ACCELERATOR"] = "cpu"
    return values | dict(env), ops


def _failed(plan: BuildPlan, error: FleetError, built: Built) -> Report:
    error.host = error.host or plan.host.name
    result = Result(plan.host.name, False, error=error)
    return Report("build", (result,), exit_code_of((result,)), answer=built)


def _own_folder(builds: Path) -> Path:
    """Returns the folder builds/ on the head, which git and code syncs ignore. Raises UsageError if it cannot be made
    or belongs to another user."""
    with on_os_error(UsageError, f"cannot write to {builds}", hint="choose a folder with --builds-dir"):
        own.own_folder(builds, "--builds-dir", make=True)
    return builds.resolve()


def short(op: str) -> str:
    """Returns an op's short name, as in DS_BUILD_SHM_COMM for deepspeed_shm_comm."""
    return op.removeprefix("deepspeed_")


def installed_ops(text: str) -> dict[str, bool]:
    """Returns op -> True if the wheel has it, from deepspeed's git_version_info_installed.py. The values there are
    booleans, or the 1 of DS_BUILD_NAME=1."""
    line = next((line for line in text.splitlines() if line.startswith("installed_ops=")), "")
    return {name: value not in ("False", "0", "None") for name, value in re.findall(r"'(\w+)': (\w+)", line)}


def check_ops(path: Path, ops: Sequence[str], host: str) -> None:
    """Raises HostFailed if the wheel lacks one of the ops. If deepspeed does not know an op, or cannot compile it, it
    drops the op without a message."""
    if not ops:
        return
    try:
        with zipfile.ZipFile(path) as archive, archive.open("deepspeed/git_version_info_installed.py") as f:
            text = f.read(1 << 16).decode("utf-8", "replace")
    except wheels.DAMAGE as error:
        raise HostFailed(
            f"what was built is no wheel of deepspeed: {error}",
            host=host,
            kind="build",
            hint="the log shows what was built",
        ) from error
    found = installed_ops(text)
    lacking = [op for op in ops if not (found.get(op) or found.get(f"deepspeed_{short(op)}"))]
    if lacking:
        raise HostFailed(
            f"the wheel lacks {', '.join(lacking)}",
            host=host,
            kind="build",
            hint=f"deepspeed knows {', '.join(sorted(found))}; the log shows why one was left out",
        )
