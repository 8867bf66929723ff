"""Defines the request of `fleet launch --on k8s`: to write a run as a manifest of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import normpath

from fleet.errors import UsageError
from fleet.inventory.secret import has_secret_part, masked_argv
from fleet.node.container.place import MOST_NODES
from fleet.requests.request import Request, number

# a name leaves room for JobSet's suffix of a pod, within 63 characters: "-node-0-65535-" and five more
LONGEST = 63 - len("-node-0-65535-abcde")
FOLDER = "/opt/fleet"  # of fleet.pyz in a pod
MOUNTED = (FOLDER, "/dev/shm")
OF_PODS = re.compile(
    "RANK|WORLD_SIZE|NNODES|NODE_RANK|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT|JOB_COMPLETION_INDEX|PET_.*"
)
# option -> (what its value looks like, what to write)
FORMS = {
    "queue": (r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "--queue team-a"),
    "rdma": (
        r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?(:[1-9][0-9]{0,3})?",
        "--rdma rdma/hca:1",
    ),
    "volume": (r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?:/[^:\0]*", "--volume CLAIM:/data"),
    "mem": (r"[1-9][0-9]{0,11}[KMGT]?", "--mem 64G, for each node"),
    "cpus-per-task": (r"[1-9][0-9]{0,3}", "--cpus-per-task 8"),
}


@dataclass(frozen=True, kw_only=True)
class Manifest(Request):
    """Requests a manifest whose pods each start `command`, a part of the run. kind: the value of --as. run: its id.
    command, args: without a shell. nnodes: pods. ranks: of a node, each with a GPU; "cpu": one a core, without GPUs.
    env: variables of the run. secret: names of those whose values only the Secret has. max_restarts: how often all pods
    are made again after a failure, if `kind` can do that. queue: of Kueue. rdma: a resource, and how many of it.
    volume: claims and where each is mounted. mem, cpus_per_task: as of sbatch."""

    kind: str
    run: str
    container: str
    command: Sequence[str]
    args: Sequence[str]
    nnodes: int = number(1, 1, MOST_NODES)
    ranks: int | str
    port: int = number(0, 0, 65535)
    env: Mapping[str, str] = field(default_factory=dict)
    secret: Sequence[str] = ()
    max_restarts: int = number(0, 0, 1e9)
    grace: float | None = number(None, 0, 1e9)
    queue: str | None = None
    rdma: str | None = None
    volume: Sequence[str] = ()
    mem: str | None = None
    cpus_per_task: str | None = None

    def check(self) -> None:
        for name, (form, hint) in FORMS.items():
            value = getattr(self, name.replace("-", "_"))
            for each in [value] if isinstance(value, str) else value or ():
                if not re.fullmatch(form, each, re.ASCII):
                    raise UsageError(f"--{name} {each!r}: not what it takes", hint=hint)
        paths = [*MOUNTED, *(normpath(each.partition(":")[2]) for each in self.volume)]
        if twice := next((path for path in paths if paths.count(path) > 1), None):
            raise UsageError(f"--volume: {twice} is there twice", hint="--volume CLAIM:/data, another path for each")
        for name in (*self.env, *self.secret):
            if OF_PODS.fullmatch(name):
                raise UsageError(
                    f"variable {name}: the manifest and its operator set it", hint=f"leave out --env {name}"
                )
        for name, value in self.env.items():
            if masked_argv([pair := f"{name}={value}"]) != [pair] or has_secret_part(value):
                hint = f"export {name}, and give '--env {name}': pods get it from a Secret"
                raise UsageError(f"--env {name}=***: a manifest must not hold a secret", hint=hint)
        for text in (*self.env.values(), *self.command, *self.args, *self.volume):
            if any(0xD800 <= ord(it) < 0xE000 for it in text):
                raise UsageError(
                    f"{text!r} is no UTF-8, as all of a manifest is", hint="put it into a file, and name that"
                )

    @property
    def name(self) -> str:
        """Returns the name of all objects: a DNS label that leaves room for an operator's own suffixes."""
        stem, *stamp = self.run.lower().rsplit("-", 3)
        words = re.sub("[^a-z0-9]+", "-", stem).strip("-")
        words = words if words[:1].isalpha() else f"run-{words}"
        end = "".join(f"-{it}" for it in stamp)
        return words[: LONGEST - len(end)].rstrip("-") + end

    def limits(self) -> Iterator[tuple[str, int | str]]:
        """Yields the resources of a pod, each with its quantity."""
        counted = self.ranks if isinstance(self.ranks, int) else 1
        if isinstance(self.ranks, int):
            yield "nvidia.com/gpu", self.ranks
        if self.cpus_per_task:
            yield "cpu", int(self.cpus_per_task) * counted
        if self.mem:
            yield "memory", f"{self.mem}i" if self.mem[-1].isalpha() else f"{self.mem}Mi"
        if self.rdma:
            resource, _, count = self.rdma.partition(":")
            yield resource, int(count or 1)
