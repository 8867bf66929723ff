"""Defines the request of `fleet launch`: to start a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fleet.errors import UsageError
from fleet.inventory.fields import MAX_SLOTS, FieldError, image, instead_of_variable
from fleet.model import Host
from fleet.requests.request import OptionError, number, option, within
from fleet.requests.runs import NAMED, OfRun
from fleet.requests.variables import check_variable, pattern_of_launchers

COUNTS = ("auto", "gpu", "cpu")
RUNS, WHERE, ENVIRONMENT = "What runs", "Where, and how many", "Environment"  # sections of its help
MEANWHILE = "While it runs"
NOT_REPEATED = ("runs_dir", "repeats", "claims", "attempt", "options")


@dataclass(frozen=True, kw_only=True)
class Launch(OfRun):
    """Requests to start `script` as ranks on all hosts. Times are seconds.

    nnodes: take the first N hosts, None: all but the spares; "MIN:MAX": elastic, goes on while MIN are left. spares:
    number of hosts that wait to replace lost ones. nproc_per_node: ranks on a node: a number, "gpu", "cpu" or "auto"
    (GPUs, or else CPUs), None: each host's slots. engine: None is torchrun, or "command" once on each node for a shell
    script. module: `script` is a module's name, as after python -m. no_python: `script` is a program, which the engine
    starts as it is. master_port: 0 chooses one. options: those that only this engine has.

    clean_env: ranks do not see the nodes' variables in OF_LAUNCHERS, except those in keep_env.

    lease: how long nodes go on without a head, None: forever. node_timeout: silence after which a node is lost.
    stall_timeout: silence of all ranks after which the run is over, None: never. grace: between SIGTERM and SIGKILL,
    None: 30 for a requested stop, 10 after a failure. max_log: bytes that a node keeps of a log that the head has, 0:
    all. sample: time between two samples of each node, 0: none. max_restarts: how often all ranks are started again
    after a failure. detach: once the run has started it goes on without this program, and `attach` follows it. share:
    start on hosts with another live run, too. wait: wait until the live runs on the hosts are over; a number: at most
    that long. notify: a line for sh on this machine at the run's end; its stdin is the summary as JSON. preflight:
    False starts in spite of what it finds.

    sync: mirror `folder` to the nodes' workdir first. force: also replace what another folder delivered. max_delete:
    see Sync. wheels: install this folder of wheels, or the wheels of this requirements file, into the nodes' Python
    first; force: also replace installed versions, and break packages. as_there: run what the nodes have, even if
    another source delivered it. folder: also the workdir of hosts that have none; None: the current one. runs_dir: the
    folder of runs/RUN. repeats: the run that this one repeats. claims: the run's id, and attempt: the number of its
    start, if it was submitted to a queue before."""

    script: str = field(kw_only=False)
    args: Sequence[str] = field(default=(), kw_only=False)
    engine: str | None = option(
        None, "What starts the ranks on a node [torchrun; a shell script: command].", daily=True, section=RUNS
    )
    nnodes: int | str | None = option(
        None,
        "Only the first N hosts; of MIN:MAX torchrun goes on while MIN are left, and takes others back.",
        metavar="N|MIN:MAX",
        daily=True,
        section=WHERE,
    )
    nproc_per_node: int | str | None = option(
        None, "Ranks a node [the host's slots].", metavar="N|auto|gpu|cpu", daily=True, section=WHERE
    )
    master_addr: str | None = option(None, "Where ranks meet [node 0's data address].", metavar="ADDR", section=WHERE)
    master_port: int = option(0, "Its port.", metavar="PORT|auto", limits=within(0, 65535), section=WHERE)
    env: Mapping[str, str] | None = option(
        None, "Set K to V, or to its value here.", metavar="K=V|K", daily=True, section=ENVIRONMENT
    )
    env_expand: Mapping[str, str] | None = option(
        None, "Set K to V with $NAMEs expanded on the node.", metavar="K=V", section=ENVIRONMENT
    )
    clean_env: bool = option(False, "Ranks see nothing of SLURM_*, PMI_*, OMPI_* and the like.", section=ENVIRONMENT)
    keep_env: Sequence[str] = option((), "With --clean-env: but this one.", metavar="NAME", section=ENVIRONMENT)
    workdir: str | None = option(
        None,
        "Folder on the nodes [the host's workdir, else this folder's path].",
        metavar="DIR",
        daily=True,
        section=RUNS,
    )
    python: str | None = option(
        None,
        "Training interpreter on the nodes [the host's python, else python3].",
        metavar="PATH",
        daily=True,
        section=RUNS,
    )
    container: str | None = option(
        None,
        "Run the engine in a container of this image on each node [the host's container].",
        metavar="IMAGE",
        daily=True,
        section=RUNS,
    )
    container_args: Sequence[str] = option(
        (),
        "An option of the container runtime's own; write --container-arg=--OPTION.",
        "--container-arg",
        metavar="ARG",
        section=RUNS,
    )
    engine_args: Sequence[str] = option(
        (),
        "An option of the engine's own; write --engine-arg=--OPTION.",
        "--engine-arg",
        metavar="ARG",
        section=RUNS,
    )
    module: bool = option(
        False, "SCRIPT is a module's name, as after python -m.", "-m", "--module", daily=True, section=RUNS
    )
    no_python: bool = option(False, "SCRIPT is a program, which the engine starts as it is.", section=RUNS)
    sync: bool = option(False, "Mirror this folder to the nodes' workdir first.", daily=True, section=RUNS)
    wheels: str | None = option(
        None,
        "Install these wheels into the nodes' Python first, as fleet sync does.",
        metavar="DIR|REQUIREMENTS",
        completes="file",
        section=RUNS,
    )
    force: bool = option(
        False,
        "With --sync: replace what a sync of another folder put there. With --wheels: replace what nodes have.",
        section=RUNS,
    )
    max_delete: int | Literal["all"] | None = option(
        None,
        "With --sync: delete up to N files on a host, or all; without, not most of what is there.",
        metavar="N|all",
        limits=within(0),
        section=RUNS,
    )
    as_there: bool = option(False, "Run SCRIPT as the nodes have it, though it is another project's.", section=RUNS)
    lease: float | None = option(
        120.0, "Seconds that nodes go on without this command.", metavar="S", limits=within(1), section=MEANWHILE
    )
    grace: float | None = option(
        None,
        "Seconds between SIGTERM and SIGKILL [30 of a requested stop, 10 after a failure].",
        metavar="S",
        limits=within(0),
        section=MEANWHILE,
    )
    node_timeout: float = option(
        15.0, "Seconds of silence after which a node is lost.", metavar="S", limits=within(1), section=MEANWHILE
    )
    stall_timeout: float | None = option(
        None,
        "End the run, with its stacks, when no rank has written anything for S seconds [never].",
        metavar="S",
        limits=within(1),
        section=MEANWHILE,
    )
    flight_recorder: bool = option(
        False,
        "Have torch note collectives (NCCL), so that a hang names the one it is in, and who did not come.",
        section=MEANWHILE,
    )
    max_log: int = option(
        0, "Nodes keep so much of a log that is here [all].", metavar="SIZE", limits=within(0), section=MEANWHILE
    )
    sample: float = option(
        10.0,
        "Sample each node's GPUs, network and CPUs every S seconds, 0.5 or more, 0: never.",
        metavar="S",
        limits=within(0),
        section=MEANWHILE,
    )
    max_restarts: int = option(
        0, "Restarts of all ranks after a failure.", metavar="N", limits=within(0), daily=True, section=MEANWHILE
    )
    name: str | None = option(None, "The run's name [the script's].", metavar="NAME", daily=True, section=NAMED)
    preflight: bool = True
    wait: bool | float = option(
        False,
        "Where live runs have the hosts, wait until they are over, S seconds at most; with --on env, for the other "
        "containers [600].",
        metavar="[S]",
        limits=within(0, 1e9),
        section=WHERE,
    )
    notify: str | None = option(
        None,
        "At the end of the run, start this line on the head, by sh, with the run's summary on its stdin.",
        metavar="COMMAND",
        section=MEANWHILE,
    )
    detach: bool = option(False, "Once it runs, leave it to itself: it needs no head.", daily=True, section=MEANWHILE)
    share: bool = option(False, "Start also where another run is live.", section=MEANWHILE)
    spares: int = option(
        0, "N spare hosts take lost ones' places.", metavar="N", limits=within(0), daily=True, section=WHERE
    )
    folder: str | os.PathLike[str] | None = None
    repeats: str | None = None
    claims: str | None = None
    attempt: int = number(0, 0)
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        if not self.script:
            raise OptionError("script", "is empty", "fleet launch train.py")
        if self.module and self.no_python:
            raise UsageError("SCRIPT is either a module (-m) or a program (--no-python)", hint="leave one of them out")
        if self.force and not self.sync and not self.wheels:
            typed = f"fleet launch --sync --force {self.script}"
            raise OptionError("force", "has a meaning with --sync or --wheels only", typed)
        if self.max_delete is not None and not self.sync:
            typed = f"fleet launch --sync --max-delete=all {self.script}"
            raise OptionError("max_delete", "has a meaning with --sync only", typed)
        try:
            image(self.container or "none")
        except FieldError as misfit:
            raise OptionError("container", str(misfit), "fleet launch --container pytorch:24.05 train.py") from None
        if 0 < self.sample < 0.5:
            raise OptionError("sample", f"{self.sample:g}: must be 0, or 0.5 or more")
        if self.keep_env and not self.clean_env:
            raise OptionError("keep_env", "has a meaning with --clean-env only", "all variables are kept without")
        for name, value in (("workdir", self.workdir or ""), ("python", self.python or "")):
            if hint := instead_of_variable(value):
                raise OptionError(name, f"{value}: variables are not expanded", hint)
        for set_by in ("env", "env_expand"):
            for name, value in (getattr(self, set_by) or {}).items():
                check_variable(set_by, name, value)
        _ = self.nodes, self.ranks

    def image_of(self, host: Host) -> str | None:
        """Returns the image of the host's container; None: it runs in none."""
        return self.container or host.container

    def training_of(self, host: Host) -> tuple[str | None, str | None]:
        """Returns (python, activate). Those of the inventory are the node's own, which a container does not have."""
        own = (None, None) if self.image_of(host) else (host.python, host.activate)
        return self.python or own[0], own[1]

    @property
    def delivers(self) -> list[str]:
        """Returns the modules that copy something to nodes before they start."""
        return ["fleet.ops.sync"] * self.sync + ["fleet.ops.wheels"] * bool(self.wheels)

    @property
    def unset(self) -> str | None:
        """Returns a pattern of the variables that ranks do not see; None if they see all."""
        return pattern_of_launchers(self.keep_env) if self.clean_env else None

    @property
    def nodes(self) -> tuple[int | None, int]:
        """Returns (most, least). most: number of nodes to start on, None: all. least: number with which the run goes
        on, 0: all of them."""
        if self.nnodes is None:
            return None, 0
        text = str(self.nnodes)
        low, colon, high = text.partition(":")
        unfit = len(text) > 20 or not low.isdecimal() or int(low) < 1
        if unfit or (colon and (not high.isdecimal() or int(high) < int(low))):
            raise OptionError("nnodes", f"{text}: not a number of nodes", "--nnodes 4, or 2:4")
        least, most = int(low), int(high if colon else low)
        return most, least if least != most else 0

    @property
    def most(self) -> int | None:
        return self.nodes[0]

    @property
    def least(self) -> int:
        return self.nodes[1]

    @property
    def ranks(self) -> int | None:
        """Returns the number of ranks on a node; None: `counted` decides."""
        if self.nproc_per_node is None or self.nproc_per_node in COUNTS:
            return None
        text = str(self.nproc_per_node)
        if len(text) > 20 or not text.isdecimal() or not 1 <= int(text) <= MAX_SLOTS:
            hint = f"a number up to {MAX_SLOTS}, auto, gpu or cpu"
            raise OptionError("nproc_per_node", f"{text}: not a number of ranks", hint)
        return int(text)

    @property
    def counted(self) -> str:
        """Returns what decides the number of ranks: "slots" the inventory's, "gpu" one per GPU, "cpu" one per core,
        "auto" one per GPU, else one per core."""
        return str(self.nproc_per_node) if self.nproc_per_node in COUNTS else "slots"

    @property
    def document(self) -> dict[str, Any]:
        """Returns the fields for run.json that make the same request again. An engine's own options are among them."""
        values = {name: value for name, value in self.given().items() if name not in NOT_REPEATED}
        return {**values, **self.options}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Launch:
        """Returns the request of a `document`. Raises OptionError for an invalid one."""
        known = {name: value for name, value in document.items() if name in cls.__dataclass_fields__}
        return cls(**known, options={name: value for name, value in document.items() if name not in known})

    @property
    def cwd(self) -> str:
        return os.fspath(self.folder or ".")
