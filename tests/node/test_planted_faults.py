"""Faults that are planted on a node: a program on its PATH, a mount in a mount namespace. The probe's facts of it, for
`fleet check` and for a launch, lead to the same finding, and those of the node as it was do not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host
from tests.host_facts import BASE
from tests.node.seams import in_mounts
from tests.plans import planned
from tests.verdicts import of_check, of_launch

GPU = "0, NVIDIA A100-SXM4-80GB, 81920, GPU-0, 550.90.07, 0"
SECOND = GPU.replace("0, NV", "1, NV").replace("GPU-0", "GPU-1")
WELL = "3, Default, Disabled, 0x0000000000000001"
SMI = """#!/bin/sh
case "$*" in
*compute-apps*) exit 0 ;;
*help*) printf '"%s"\n' memory.used compute_mode mig.mode.current clocks_throttle_reasons.active; exit 0 ;;
esac
case "$*" in *mig.mode*) {first} ;; esac
echo '{gpu}'
"""
INVALID = """echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2"""
DRIVER = (
    "mount -t tmpfs tmpfs /proc/driver && mkdir -p /proc/driver/nvidia/gpus/0000:01:00.0 "
    "/proc/driver/nvidia/gpus/0000:02:00.0 && echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07' "
    ">/proc/driver/nvidia/version"
)
INFINIBAND = (
    "mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/infiniband/mlx5_0/ports/1 && "
    "cd /sys/class/infiniband/mlx5_0/ports/1 && echo '4: ACTIVE' >state && echo '{rate}' >rate && "
    "echo {layer} >link_layer && cd - >/dev/null"
)
PROBE = """
import json, os
from pathlib import Path
from tests.free_port import free_port
from tests.node.nodes import answer
from tests.node.test_preflight import spec
own = json.loads(os.environ["SPEC"])
both = own, spec(free_port(), script="t.py", **own)
print(json.dumps([answer("preflight.probe", each, Path(os.environ["PLANTED"]))["facts"] for each in both]))
"""


def smi(state: str = WELL, gpu: str = GPU) -> str:
    """A stand-in for nvidia-smi, of one GPU in that state."""
    return SMI.format(first=f"echo '{gpu}, {state}'; exit 0", gpu=gpu)


@dataclass(frozen=True)
class Plant:
    """mounts: lines of shell. files: below the home; those of bin/ are programs on the PATH. against: the same node
    with these mounts, without the fault, where the fault is that two nodes differ."""

    name: str
    found: str
    mounts: str = "true"
    files: dict[str, str] | None = None
    engine: str = "torchrun"
    against: str = ""
    alone: bool = False


OLD_GCC = {f"bin/{name}": "#!/bin/sh\necho 4.8.5\n" for name in ("gcc", "g++")}
PLANTS = (
    Plant("gcc 4.8.5", "toolchain", files=OLD_GCC, engine="colossalai"),
    Plant("no compiler", "toolchain", engine="colossalai", alone=True),
    Plant("an nvidia-smi that hangs", "hangs-gpus", DRIVER, {"bin/nvidia-smi": "#!/bin/sh\nexec sleep 1000\n"}),
    Plant("an nvidia-smi that fails", "gpu-unusable", files={"bin/nvidia-smi": "#!/bin/sh\necho mismatch; exit 18\n"}),
    Plant("heat", "gpu-throttled", files={"bin/nvidia-smi": smi("3, Default, Disabled, 0x0000000000000048")}),
    Plant("mode Prohibited", "gpu-prohibited", files={"bin/nvidia-smi": smi("3, Prohibited, Disabled, 0x0")}),
    Plant("memory that nobody holds", "gpu-held", files={"bin/nvidia-smi": smi("61440, Default, Disabled, 0x0")}),
    Plant("a GPU that is missing", "gpu-lost", DRIVER, {"bin/nvidia-smi": smi()}),
    Plant(
        "memory errors, and an old driver that tells no state",
        "gpu-ecc",
        files={"bin/nvidia-smi": SMI.format(first=INVALID, gpu=GPU[:-1] + "7")},
    ),
    Plant(
        "a slower InfiniBand port",
        "infiniband-rate",
        INFINIBAND.format(rate="100 Gb/sec", layer="InfiniBand"),
        against=INFINIBAND.format(rate="200 Gb/sec", layer="InfiniBand"),
    ),
    Plant(
        "Ethernet where others have InfiniBand",
        "infiniband-layer",
        INFINIBAND.format(rate="200 Gb/sec", layer="Ethernet"),
        against=INFINIBAND.format(rate="200 Gb/sec", layer="InfiniBand"),
    ),
    Plant(
        "~/.fleet is full",
        "disk-fleet",
        'mkdir -p "$PLANTED/.fleet" && mount -t tmpfs -o size=64k tmpfs "$PLANTED/.fleet" && '
        'fallocate -l 64k "$PLANTED/.fleet/logs"',
    ),
    Plant(
        "/dev/shm is full",
        "shm-full",
        "mount -t tmpfs -o size=1100m tmpfs /dev/shm && fallocate -l 1090m /dev/shm/left",
    ),
    Plant("random.py", "modules-hidden", files={"work/random.py": ""}),
    Plant("a package called torch", "modules-hidden", files={"work/torch/__init__.py": ""}),
)


def facts(folder: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch, mounts: str, files: dict[str, str]) -> list[Any]:
    """Those of a check and of a launch."""
    home = folder / "home"
    for name, text in {"work/t.py": "", "work/test.py": "", "work/data/__init__.py": "", **files}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    own = "/usr/local/bin:/usr/bin:/bin"
    if plant.alone:
        own = str(folder / "few")
        Path(own).mkdir()
        for name in ("python3", "bash", "env", "sh"):
            (Path(own) / name).symlink_to(Path("/usr/bin") / name)
    path = f"{home}/bin:{own}"
    spec = {"deadline": 10.0, "python": None, "activate": None, "env": {"PATH": path}, "workdir": str(home / "work")}
    monkeypatch.setenv("SPEC", json.dumps(spec))
    monkeypatch.setenv("PLANTED", str(home))
    told: list[Any] = json.loads(in_mounts(mounts, PROBE).splitlines()[-1])
    return [healthy(each) for each in told]


def healthy(told: dict[str, Any]) -> dict[str, Any]:
    """The node's facts, and the training interpreter of a host that has one."""
    rest = ("python", "torch", "deepspeed", "packages", "script", "port", "network", "memory", "code", "interpreters")
    known = {name: BASE[name] for name in rest if name in BASE}
    return {**told, **known, "packages": {**BASE["packages"], "colossalai": "0.4.6"}, "deepspeed": None}


QUICK = ("gcc 4.8.5", "heat")


@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, marks=() if plant.name in QUICK else pytest.mark.slow, id=plant.name) for plant in PLANTS],
)
def test_what_is_planted_is_found_by_check_and_launch(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = facts(tmp_path / "there", plant, monkeypatch, plant.mounts, plant.files or {})
    well = {"bin/nvidia-smi": smi()} if plant.files and "bin/nvidia-smi" in plant.files else {}
    if plant.engine == "colossalai":
        well |= {f"bin/{name}": "#!/bin/sh\necho 11.4.0\n" for name in ("gcc", "g++")}
        well |= {"bin/nvcc": "#!/bin/sh\necho release 12.4, V12.4\n"}
    sound = Plant("", "", engine=plant.engine)
    others = facts(tmp_path / "others", sound, monkeypatch, plant.against or "true", well)
    hosts = tuple(Host(name, f"10.0.0.{n}") for n, name in enumerate(("n1", "n2", "n3"), 1))
    for number, verb in enumerate(("check", "launch")):
        told = {"n1": others[number], "n2": others[number], "n3": there[number]}
        assert not told["n3"]["failed"], verb
        for name, each in told.items():
            each["hostname"] = name
        if verb == "check":
            found = of_check(hosts, told, plant.engine).findings
        else:
            found = tuple(of_launch(planned(*hosts, engine=plant.engine, nproc_per_node=1), told))
        assert [finding.hosts for finding in found if finding.id == plant.found] == [("n3",)], (verb, found)
        assert "gpu-driver-missing" not in {finding.id for finding in found}
