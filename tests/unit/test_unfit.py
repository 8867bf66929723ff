"""Hosts that are unfit, and those that are healthy: what `fleet check` and `fleet launch` find of each, both the same.

The network between hosts is not in these tables. tests/node/test_planted_faults.py plants what these facts come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.model import Host
from tests.host_facts import BASE, facts_of
from tests.plans import planned
from tests.verdicts import of_check, of_launch

NAMES = ("gpu1", "gpu2", "gpu3")
Changes = Mapping[str, Any]
MISSING = "<missing>"


def gpus(count: int = 8, **changes: Any) -> dict[str, Any]:
    """Eight GPUs; changes: of all of them, or, as g2, of one."""
    of_all = {name: value for name, value in changes.items() if not name[1:].isdigit()}
    return {"gpus": [{**gpu, **of_all, **changes.get(f"g{gpu['index']}", {})} for gpu in BASE["gpus"][:count]]}


def port(**changes: str) -> dict[str, Any]:
    return {"infiniband": [{**BASE["infiniband"][0], **changes}]}


@dataclass(frozen=True)
class Case:
    """changes: in the facts of gpu3, or of every host. found: the finding's id, "" for none. also: others that the same
    fault is told by."""

    name: str
    changes: Changes
    found: str = ""
    everywhere: bool = False
    engine: str = "torchrun"
    slots: int | None = 8
    also: tuple[str, ...] = ()

    def facts(self) -> dict[str, dict[str, Any]]:
        return {name: facts_of(name, self.changes if self.everywhere or name == "gpu3" else {}) for name in NAMES}


def everywhere(name: str, changes: Changes, found: str = "", **more: Any) -> Case:
    return Case(name, changes, found, everywhere=True, **more)


OLD = {"compilers.gcc": "4.8.5", "compilers.g++": "4.8.5", "packages.colossalai": "0.4.6"}
BARE = {"compilers.gcc": None, "compilers.g++": None, "packages.colossalai": "0.4.6"}
NO_OPS = {"deepspeed.ops": []}
HANGS = {"gpus": MISSING, "gpu_error": MISSING, "gpu_processes": MISSING, "driver": None}
NO_GPU = {"gpus": [], "pci_gpus": 0, "driver_gpus": 0, "driver": None}
CPU = {**NO_GPU, "torch.cuda": None, "torch.nccl": None}
BUSY = {"gpu_processes": [{"pid": 4711, "gpu": "GPU-1", "command": "python other.py"}]}
BROKEN = {"version": None, "path": "/x", "error": "/x: no such program"}
LOCK = {"path": "/c/py311_cu124/fused_adam/lock", "sure": True}

FAULTS = (
    # compilers
    everywhere("gcc 4.8.5 under colossalai", OLD, "toolchain", engine="colossalai"),
    everywhere("no compiler under colossalai", BARE, "toolchain", engine="colossalai"),
    everywhere("no compiler under deepspeed", {**BARE, **NO_OPS}, "toolchain", engine="deepspeed"),
    everywhere("gcc too new for nvcc", {"compilers.g++": "14.2.0", **NO_OPS}, "toolchain", engine="deepspeed"),
    everywhere("no nvcc", {"cuda_toolkit": None, **NO_OPS}, "toolchain", engine="deepspeed"),
    everywhere("nvcc of another major version", {"cuda_toolkit": "11.8", **NO_OPS}, "toolchain", engine="deepspeed"),
    Case("another gcc", {"compilers.gcc": "9.4.0"}, "gcc"),
    Case("another CUDA toolkit", {"cuda_toolkit": "12.1"}, "cuda-toolkit"),
    # GPUs
    everywhere("a GPU that torch is too old for", gpus(name="NVIDIA B200"), "gpu-kernels"),
    everywhere(
        "a GPU that torch is too new for",
        {**gpus(name="Tesla V100-SXM2-32GB"), "torch.cuda": "13.0", "driver": "580.65.06"},
        "gpu-kernels",
    ),
    everywhere("a torch without CUDA", {"torch.cuda": None, "torch.nccl": None}, "torch-cpu"),
    Case("nvidia-smi hangs", {**HANGS, "timed_out": ["gpus"]}, "hangs-gpus"),
    Case("nvidia-smi fails", {**HANGS, "gpu_error": "Driver/library version mismatch"}, "gpu-unusable"),
    Case(
        "no driver",
        {"gpus": [], "driver": None, "driver_gpus": 0},
        "gpu-driver-missing",
        also=("gpu-model", "driver-version"),
    ),
    Case("fewer GPUs than slots", {**gpus(6), "pci_gpus": 6, "driver_gpus": 6}, "gpu-slots"),
    Case("a GPU of several is missing", gpus(7), "gpu-lost", slots=4),
    Case("no GPU on one host", NO_GPU, "gpu-none", slots=1, also=("gpu-model", "driver-version")),
    Case("another number of GPUs", {**gpus(4), "pci_gpus": 4, "driver_gpus": 4}, "gpu-count", slots=None),
    Case("another model", gpus(name="NVIDIA A100-PCIE-40GB", memory=40 << 30), "gpu-model"),
    Case("memory of another size", gpus(memory=40 << 30), "gpu-memory"),
    Case("too hot", gpus(g3={"slowed": 0x41}), "gpu-throttled"),
    Case("too little power", gpus(g3={"slowed": 0x88}), "gpu-throttled"),
    everywhere("mode Prohibited", gpus(g0={"mode": "Prohibited"}), "gpu-prohibited"),
    Case("MIG on some", gpus(g0={"mig": True}, g1={"mig": True}), "gpu-mig"),
    Case("MIG on one host", gpus(mig=True), "gpu-model"),
    Case("memory errors", gpus(g7={"ecc_errors": 3}), "gpu-ecc", slots=1),
    Case("a GPU that requires a reset", gpus(g3={"reset": True}), "gpu-reset"),
    Case("in use by somebody", BUSY, "gpu-busy"),
    Case("memory that nobody seems to hold", gpus(g3={"used": 60 << 30}), "gpu-held"),
    everywhere("a driver too old for torch", {"driver": "470.57.02"}, "driver-old"),
    Case("another driver", {"driver": "560.28.03"}, "driver-version"),
    Case("a variable hides GPUs", {"visible": 2}, "gpus-hidden"),
    # room
    Case("/dev/shm is full", {"disks.shm.free": 1 << 20}, "shm-full"),
    everywhere("/dev/shm is tiny", {"disks.shm.free": 64 << 20, "disks.shm.total": 64 << 20}, "shm-size"),
    Case("no inode in /dev/shm", {"disks.shm.inodes": 0}, "inodes-shm"),
    Case("/tmp is full", {"disks.tmp.free": 0}, "disk-tmp"),
    Case("the home is full", {"disks.home.free": 0}, "disk-home"),
    Case("no inode in the home", {"disks.home.inodes": 0}, "inodes-home"),
    Case("~/.fleet is full", {"disks.fleet.free": 0}, "disk-fleet"),
    Case("no inode in ~/.fleet", {"disks.fleet.inodes": 0}, "inodes-fleet"),
    Case("~/.fleet cannot be written", {"no_runs": "/home/train/.fleet"}, "runs-folder"),
    Case("the workdir is full", {"disks.workdir.free": 0}, "disk-workdir"),
    Case("no inode in the workdir", {"disks.workdir.inodes": 0}, "inodes-workdir"),
    Case("the workdir is another's", {"disks.workdir.writable": False}, "workdir-writable"),
    Case("no workdir", {"disks.workdir.exists": False}, "workdir-missing"),
    everywhere("memory is full", {"memory.available": 1 << 20}, "memory"),
    # what hangs
    Case("the home hangs", {"timed_out": ["disk home"], "disks.home": MISSING}, "hangs-disk-home"),
    Case("~/.fleet hangs", {"timed_out": ["disk fleet"], "disks.fleet": MISSING}, "hangs-disk-fleet"),
    Case("the workdir hangs", {"timed_out": ["disk workdir"], "disks.workdir": MISSING}, "hangs-disk-workdir"),
    Case("the activate line hangs", {"timed_out": ["activate", "python"], "python": MISSING}, "hangs-activate"),
    Case("Python hangs", {"timed_out": ["python", "imports"], "python": MISSING}, "hangs-python"),
    Case("data hangs", {"timed_out": ["data files"], "data_changed": MISSING}, "hangs-data-files"),
    # code and data
    Case("data was cut", {"data_changed": {"/data/part-3": "17 bytes"}}, "data-changed"),
    Case("data is gone", {"data_changed": {"/data": "missing"}}, "data-changed"),
    Case("data was written anew", {"data_changed": {"/data/part-3": "changed"}}, "data-changed"),
    Case("data came in part", {"data": {"folder": "/data", "busy": None}}, "data-mixed"),
    Case("code came in part", {"code.half": True}, "code-mixed"),
    Case("other code", {"code.digest": "b" * 64}, "code-differs"),
    Case("code was changed there", {"code.changed": {"model.py": "0123"}}, "code-changed"),
    everywhere("random.py", {"shadows": {"folder": "/w", "files": ["random.py"]}}, "modules-hidden"),
    everywhere("torch.py", {"shadows": {"folder": "/w", "files": ["torch.py"]}}, "modules-hidden"),
    everywhere("a build that was killed", {"builds": [LOCK]}, "build-lock"),
    # Python
    Case("no Python", {"python": BROKEN}, "python-missing"),
    Case("another Python", {"python.version": "3.10.1"}, "python-version"),
    Case("no torch", {"torch": None}, "module-missing"),
    Case("another torch", {"torch.version": "2.4.0"}, "torch-version"),
    Case("torch for another CUDA", {"torch.cuda": "12.1"}, "torch-build"),
    Case("another NCCL in torch", {"torch.nccl": "2.20.5"}, "torch-nccl"),
    Case("another NCCL of the system", {"nccl_library": "2.18.3"}, "nccl-library"),
    everywhere("torch cannot be imported", {"imports": {"torch": "ImportError: libcudart.so.12"}}, "import-fails"),
    Case("no DeepSpeed", {"deepspeed": None}, "module-missing", engine="deepspeed"),
    Case("another DeepSpeed", {"deepspeed.version": "0.15.1"}, "deepspeed-version", engine="deepspeed"),
    Case("other ops", {"deepspeed.ops": ["cpu_adam"]}, "deepspeed-ops"),
    Case("another accelerate", {"packages.accelerate": "1.0.0"}, "accelerate-version"),
    Case("another transformers", {"packages.transformers": "4.40.0"}, "transformers-version"),
    Case("another numpy", {"packages.numpy": "1.26.4"}, "numpy-version"),
    everywhere("an activate line that fails", {"activate": "no such env"}, "activate"),
    # the system
    Case("another machine", {"arch": "aarch64"}, "arch"),
    Case("another C library", {"glibc": "2.31"}, "glibc"),
    Case("another kernel", {"kernel": "5.4.0"}, "kernel"),
    Case("a hostname twice", {"hostname": "gpu2"}, "hostname"),
    everywhere("few open files", {"limits.nofile": 256}, "open-files"),
    everywhere("no memory may be locked", {"limits.memlock": 65536}, "memlock"),
    Case("a clock that is wrong", {"clock.offset": 90.0}, "clock"),
    Case("another variable", {"environment.NCCL_IB_HCA": "012345678901"}, "environment"),
    # InfiniBand
    Case("a port is down", port(state="DOWN"), "infiniband"),
    Case("a slower port", port(rate="100 Gb/sec (2X HDR)"), "infiniband-rate"),
    Case("Ethernet on a port", port(link_layer="Ethernet"), "infiniband-layer"),
    Case("another device name", port(device="mlx5_2"), "infiniband-names"),
)

OTHER_HOSTS_RUN = {"gpu_processes": [{"pid": 1, "gpu": "GPU-0", "command": "nvidia-cuda-mps-server"}]}
HEALTHY = (
    Case("as it should be", {}),
    everywhere("no GPU anywhere", CPU),
    everywhere("MIG on all", gpus(mig=True)),
    everywhere("clocks that are low when idle, or at the power cap", gpus(slowed=0x5)),
    everywhere("one process a GPU", gpus(mode="Exclusive_Process")),
    everywhere("a container with two GPUs of eight", {**gpus(2), "driver_gpus": 2}, slots=2),
    everywhere(
        "an old driver tells no state",
        {"gpus": [{key: gpu[key] for key in ("index", "name", "memory", "uuid", "driver")} for gpu in BASE["gpus"]]},
    ),
    everywhere("GPUs without ECC", gpus(ecc_errors=None)),
    everywhere("GPUs that no table knows", gpus(name="NVIDIA Graphics Device")),
    Case("a little memory less, as another driver has it", gpus(memory=(80 << 30) - (300 << 20))),
    Case("a driver's own memory", gpus(used=600 << 20)),
    everywhere("A100 and CUDA 11.7", {"torch.cuda": "11.7", "cuda_toolkit": "11.7"}),
    everywhere("L4 and CUDA 11.7: what is built for 8.6 runs on 8.9", {**gpus(name="NVIDIA L4"), "torch.cuda": "11.7"}),
    everywhere("H100 and CUDA 12.4", gpus(name="NVIDIA H100 80GB HBM3")),
    everywhere("B200 and CUDA 12.8", {**gpus(name="NVIDIA B200"), "torch.cuda": "12.8"}),
    everywhere("V100 and CUDA 12.4", gpus(name="Tesla V100-SXM2-32GB")),
    everywhere("MPS", OTHER_HOSTS_RUN),
    everywhere("no compiler where torchrun needs none", {**BARE, "cuda_toolkit": None}),
    everywhere("DeepSpeed with its ops built", {**BARE, "cuda_toolkit": None}, engine="deepspeed"),
    everywhere("a clang that CXX names", {"compilers.g++": MISSING, **NO_OPS}, engine="deepspeed"),
    everywhere(
        "gcc 9 under colossalai", {**OLD, "compilers.gcc": "9.4.0", "compilers.g++": "9.4.0"}, engine="colossalai"
    ),
    Case("compilers of which nothing is known", {"compilers": MISSING, "cuda_toolkit": MISSING}),
    Case("a speed that no driver tells", {"interfaces": [{**BASE["interfaces"][0], "speed": None, "mtu": None}]}),
    Case("interfaces of which nothing is known", {"interfaces": MISSING, "infiniband": MISSING}),
    everywhere("no InfiniBand", {"infiniband": []}),
    Case("inodes that are made as they are needed", {"disks.workdir.inodes": None}),
    everywhere("data that all have changed alike", {"data_changed": {"/data/cache": "9 bytes"}}),
    Case("hosts that are not alike as the inventory says", {**gpus(4), "pci_gpus": 4, "driver_gpus": 4}, slots=4),
    Case("a clock as good as it can be known", {"clock.offset": 2.0, "clock.uncertainty": 1.5}),
    everywhere("a full swap and much memory", {"memory.swap_used": 8 << 30}),
    everywhere("another C library", {"glibc": None}),
    Case("~/.fleet beside the home", {"disks.fleet": MISSING}),
)


def found(case: Case) -> dict[str, list[Any]]:
    """What both verbs find, but for what is only worth knowing."""
    hosts = tuple(Host(name, f"10.0.0.{n}", slots=case.slots) for n, name in enumerate(NAMES, 1))
    facts = case.facts()
    plan = planned(*hosts, engine=case.engine)
    both = {"check": of_check(hosts, facts, case.engine).findings, "launch": of_launch(plan, facts)}
    return {verb: [one for one in findings if one.severity != "info"] for verb, findings in both.items()}


def ids(findings: Iterable[Any]) -> set[str]:
    return {finding.id for finding in findings}


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_a_fault_is_found_by_both_on_its_hosts_and_nothing_else(case: Case) -> None:
    planted = set(NAMES if case.everywhere else ("gpu3",))
    for verb, findings in found(case).items():
        assert ids(findings) == {case.found, *case.also}, verb
        assert all(planted & set(finding.hosts) for finding in findings), "of a tie nobody can say who is wrong"
        assert {name for finding in findings if finding.id == case.found for name in finding.hosts} >= planted, verb


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_fleet_has_no_alarm(case: Case) -> None:
    assert {verb: ids(findings) for verb, findings in found(case).items()} == {"check": set(), "launch": set()}


def test_the_tables_are_as_long_as_is_said() -> None:
    assert len({case.name for case in FAULTS}) == len(FAULTS) >= 63
    assert len({case.name for case in HEALTHY}) == len(HEALTHY) >= 28


def test_no_remedy_does_harm() -> None:
    """What it names can be run on a host that others use."""
    harmful = ("rm -rf", "kill -9", "pkill", "rm /dev/shm", "chmod 777", "ulimit", "--force-reinstall", "mkfs")
    for case in FAULTS:
        for finding in found(case)["check"]:
            assert not [word for word in harmful if word in finding.remedy], finding.remedy
            assert finding.id != "hangs-gpus" or "install" not in finding.remedy
