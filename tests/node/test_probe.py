"""The probe: facts on any machine, odd texts parsed, and nothing that hangs can hold it or outlive it."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host
from fleet.node.base.files import filesystem
from fleet.node.base.gather import gather
from fleet.node.facts.network import Held, parse_addresses
from fleet.protocol.messages.facts import Probed
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport
from fleet.transport.program import call
from tests.node.nodes import Running, alive, answer, until
from tests.node.seams import in_mounts


def probe(home: Path, **spec: Any) -> dict[str, Any]:
    facts: dict[str, Any] = answer("preflight.probe", {"deadline": 20, **spec}, home)["facts"]
    return facts


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_facts_of_this_machine(home: Path) -> None:
    facts = probe(home, python=sys.executable, workdir="~/not/there/yet")
    assert facts["timed_out"] == [] and facts["failed"] == {}
    assert facts["hostname"] == socket.gethostname()
    assert facts["arch"] == os.uname().machine and facts["kernel"] == os.uname().release
    assert facts["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["packages"]["pytest"] == pytest.__version__
    assert facts["cpu"]["count"] == os.cpu_count() and facts["memory"]["total"] > 1 << 20
    workdir = facts["disks"]["workdir"]
    assert workdir["path"] == str(home / "not/there/yet") and not workdir["exists"] and workdir["free"] > 0
    assert facts["disks"]["home"]["exists"] and facts["disks"]["shm"]["total"] > 0
    assert facts["disks"]["shm"]["type"] == "tmpfs"
    assert isinstance(facts["limits"]["nofile"], int) or facts["limits"]["nofile"] == "unlimited"
    names = {name for _, name in socket.if_nameindex()}
    assert {i["name"] for i in facts["interfaces"]} <= names - {"lo"}


def test_interfaces_and_the_one_toward_the_head(home: Path) -> None:
    line = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout
    wanted = {(m[1], m[2]) for m in re.finditer(r"^\d+: (\S+)\s+inet (\S+)", line, re.M) if m[1] != "lo"}
    if not wanted:
        pytest.fail("this machine has no network interface to test with")
    name, address = sorted(wanted)[0]
    connection = f"192.0.2.77 50000 {address.split('/')[0]} 22"
    facts = answer("preflight.probe", {"deadline": 20}, home, env={"SSH_CONNECTION": connection})["facts"]
    found = {(i["name"], a) for i in facts["interfaces"] for a in i["addresses"]}
    assert wanted <= found
    assert facts["head_interface"] == name


def test_torch_is_read_as_text_and_never_imported(home: Path, tmp_path: Path) -> None:
    for name in ("torch", "deepspeed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text(
        "from typing import Optional\n__version__ = '2.5.1+cu121'\ncuda: Optional[str] = '12.1'\nhip: str = None\n"
    )
    (tmp_path / "deepspeed/git_version_info_installed.py").write_text(
        "version='0.15.4'\ninstalled_ops={'cpu_adam': True, 'async_io': False, 'utils': True}\n"
    )
    for entry in ("nvidia_nccl_cu12-2.21.5.dist-info", "Flash.Attn-2.7.0+cu12.dist-info", "old_egg-1.0-py3.9.egg-info"):
        (tmp_path / entry).mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    facts = probe(home, python=str(tmp_path / "bare/bin/python"), env={"PYTHONPATH": str(tmp_path)})
    assert facts["torch"] == {"version": "2.5.1+cu121", "cuda": "12.1", "hip": None, "nccl": "2.21.5"}
    assert facts["deepspeed"] == {"version": "0.15.4", "ops": ["cpu_adam", "utils"]}
    assert facts["packages"]["flash-attn"] == "2.7.0+cu12" and facts["packages"]["old-egg"] == "1.0"


def test_a_folder_called_torch_in_the_home_is_no_torch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "torch").mkdir()
    (home / "torch/version.py").write_text("__version__ = '0'\n")
    monkeypatch.setenv("HOME", str(home))
    session = LocalTransport().connect(Host("n1", "n1"), Cancel())  # starts programs in the home folder, as sshd does
    try:
        facts = call(session, "preflight.probe", {"deadline": 20, "python": "/usr/bin/python3"}, Probed, timeout=60)[
            "facts"
        ]
    finally:
        session.close()
    assert facts["python"]["version"] and facts["torch"] is None


@pytest.mark.parametrize(
    ("python", "said"),
    [
        pytest.param("/nowhere/bin/python", "/nowhere/bin/python: no such program", marks=pytest.mark.slow),
        pytest.param("no-such-python", "no-such-python: no such program", marks=pytest.mark.slow),
        pytest.param("/etc", "/etc: no such program", marks=pytest.mark.slow),
        ("{broken}", "{broken}: ImportError: libpython is gone"),
        ("{mute}", "{mute}: printed nothing, exit status 3"),
    ],
)
def test_an_interpreter_that_does_not_work_is_a_fact(home: Path, tmp_path: Path, python: str, said: str) -> None:
    names = {
        "broken": script(tmp_path, "broken", "echo ImportError: libpython is gone >&2; exit 1"),
        "mute": script(tmp_path, "mute", "exit 3"),
    }
    facts = probe(home, python=python.format(**names))
    assert facts["python"]["version"] is None and facts["python"]["error"] == said.format(**names)
    assert facts["torch"] is None and facts["packages"] == {}


def test_tools_are_looked_for_behind_the_activate_line(home: Path, tmp_path: Path) -> None:
    script(tmp_path, "gcc", "echo 7.3.1")
    script(tmp_path, "python3", f'echo noise; exec {sys.executable} "$@"')
    facts = probe(home, activate=f"echo hello; export PATH={tmp_path}:$PATH")
    assert facts["activate"] is None
    assert facts["compilers"]["gcc"] == "7.3.1"
    assert facts["python"]["path"] == str(tmp_path / "python3") and facts["python"]["version"]


@pytest.mark.parametrize(("named", "version"), [("g++-9 -m64", "9.4.0"), ("clang++", None), ("", "4.8.5")])
def test_the_compiler_is_the_one_that_torch_would_take(
    home: Path, tmp_path: Path, named: str, version: str | None
) -> None:
    """What `check` proposes for an old gcc, followed; of clang's versions no bound is known."""
    for name, told in {"g++": "4.8.5", "g++-9": "9.4.0", "clang++": "14.0.6"}.items():
        script(tmp_path, name, f"echo {told}")
    found = probe(home, env={"CXX": named, "PATH": f"{tmp_path}:{os.environ['PATH']}"})["compilers"]
    assert found.get("g++", "unknown") == (version or "unknown")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("conda activate no-such-env-xyz || { echo no such env >&2; false; }", "no such env"),
        pytest.param("exit 4", "exit status 4", marks=pytest.mark.slow),
    ],
)
def test_an_activate_line_that_fails_is_a_fact(home: Path, line: str, problem: str) -> None:
    assert probe(home, activate=line)["activate"] == problem


SMI = r"""
case "$*" in
*compute-apps*) echo "5000001, GPU-aa, 1024"; echo "garbage"; echo "5000002, GPU-bb, [N/A]" ;;
*) echo "0, NVIDIA A100-SXM4-80GB, 81920, GPU-aa, 535.129.03, 0"
   echo "1, NVIDIA A100-SXM4-80GB, [N/A], GPU-bb, 535.129.03, [N/A]"; echo "not, a, gpu" ;;
esac"""


def test_gpus_as_nvidia_smi_tells(home: Path, tmp_path: Path) -> None:
    script(tmp_path, "nvidia-smi", SMI)
    facts = probe(home, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert [(g["index"], g["memory"], g["ecc_errors"]) for g in facts["gpus"]] == [(0, 80 << 30, 0), (1, None, None)]
    assert facts["gpus"][0]["driver"] == "535.129.03" and facts["gpu_error"] is None
    assert facts["gpu_processes"] == [
        {"pid": 5000001, "gpu": "GPU-aa", "memory": 1 << 30, "command": None, "run_id": None},
        {"pid": 5000002, "gpu": "GPU-bb", "memory": None, "command": None, "run_id": None},
    ]


def test_gpus_as_an_h200_tells(home: Path, tmp_path: Path) -> None:
    """nvidia-smi/h200: what a real one answered, driver 580.159.04, with a rank on it; its ids are made up."""
    told = Path(__file__).parent / "nvidia-smi/h200"
    script(
        tmp_path,
        "nvidia-smi",
        f'case "$*" in *compute-apps*) cat {told}/compute-apps.csv;; *) cat {told}/gpu.csv; esac',
    )
    facts = probe(home, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    uuid = "GPU-00000000-0000-0000-0000-000000000001"
    gpu = {"index": 0, "name": "NVIDIA H200", "memory": 143771 << 20, "uuid": uuid, "driver": "580.159.04"}
    assert facts["gpus"] == [{**gpu, "ecc_errors": 0, "reset": False}] and facts["gpu_error"] is None
    assert [(each["gpu"], each["memory"]) for each in facts["gpu_processes"]] == [(uuid, 1296 << 20)]


def test_an_nvidia_smi_that_fails_says_why(home: Path, tmp_path: Path) -> None:
    script(tmp_path, "nvidia-smi", "echo Failed to initialize NVML: Driver/library version mismatch; exit 18")
    facts = probe(home, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "gpus" not in facts and "gpu_processes" not in facts and "version mismatch" in facts["gpu_error"]


def test_a_warning_of_the_inforom_and_a_gpu_that_is_to_be_reset(home: Path, tmp_path: Path) -> None:
    """nvidia-smi ends with 14 after its whole answer where it has warned of one infoROM."""
    rows = (
        "echo '0, A, 81920, GPU-aa, 535.1, 0'; echo '1, A, [GPU requires reset], GPU-bb, 535.1, [GPU requires reset]'"
    )
    script(tmp_path, "nvidia-smi", f"{rows}; echo 'WARNING: infoROM is corrupted at gpu 0000:3B:00.0' >&2; exit 14")
    facts = probe(home, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert facts["gpu_error"] is None and [gpu["reset"] for gpu in facts["gpus"]] == [False, True]


@pytest.mark.slow
def test_a_second_query_that_hangs_costs_its_own_deadline(home: Path, tmp_path: Path) -> None:
    script(
        tmp_path,
        "nvidia-smi",
        'case "$*" in *compute-apps*) exec sleep 1000;; *) echo "0, A, 1, GPU-aa, 535.1, 0"; esac',
    )
    facts = probe(home, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, deadline=300.0)
    assert facts["timed_out"] == ["gpu processes"] and facts["seconds"] < 200


@pytest.mark.slow
def test_a_tool_that_writes_for_ever_is_cut_off(home: Path, tmp_path: Path) -> None:
    script(tmp_path, "nvidia-smi", "exec yes")
    facts = probe(home, deadline=100.0, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert facts["timed_out"] == [] and "gpus" not in facts


def test_what_hangs_is_named_ended_and_holds_nothing_up(home: Path, tmp_path: Path) -> None:
    script(tmp_path, "nvidia-smi", f"echo $$ >> {tmp_path}/pids; trap '' TERM HUP INT; exec sleep 1000")
    began = time.monotonic()
    facts = probe(home, deadline=15.0, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert time.monotonic() - began < 15 + 100
    assert facts["timed_out"] == ["gpus", "gpu processes"] and "gpus" not in facts
    assert facts["python"]["version"] and facts["kernel"]
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    until(lambda: not any(alive(pid) for pid in pids))


def test_a_file_that_a_launcher_would_read(home: Path) -> None:
    """The first place whose variables are set, as the activate line has them, and no other."""
    places = ["$HF_HOME/c.yaml", "$XDG_CACHE_HOME/hf/c.yaml", "~/.cache/hf/c.yaml"]
    cache = home / ".cache/hf/c.yaml"
    cache.parent.mkdir(parents=True)
    cache.touch()
    assert probe(home, unread=places)["unread"] == str(cache)
    assert probe(home, unread=places, activate="export XDG_CACHE_HOME=/nowhere")["unread"] is None
    assert "unread" not in probe(home)


def test_an_activate_line_that_hangs_takes_only_its_own_down(home: Path) -> None:
    facts = probe(home, deadline=10.0, activate="sleep 1000")
    assert set(facts["timed_out"]) == {
        "activate",
        "python",
        "compilers",
        "nccl",
        "gpus",
        "gpu processes",
        "builds",
        "environment",
    }
    assert facts["kernel"] and facts["disks"]["home"]["free"]


def test_it_ends_with_its_children_when_the_head_goes_away(home: Path, tmp_path: Path) -> None:
    script(tmp_path, "nvidia-smi", f"echo $$ > {tmp_path}/pid.$$; exec sleep 1000")
    with Running(
        "preflight.probe", {"deadline": 600, "env": {"PATH": f"{tmp_path}:{os.environ['PATH']}"}}, home
    ) as running:
        until(lambda: len(list(tmp_path.glob("pid.*"))) == 2)
    pids = [int(path.suffix[1:]) for path in tmp_path.glob("pid.*")]
    until(lambda: not any(alive(pid) for pid in pids))
    assert running.process.returncode is not None


def test_the_clock_answers_while_steps_run(home: Path) -> None:
    with Running("preflight.probe", {"deadline": 5.0, "activate": "sleep 1000"}, home) as running:
        running.send({"op": "clock"})
        running.raw(b"garbage\n")
        running.send({"op": "nothing we know"})
        messages = [frame.json() for frame in running.frames() if frame.kind == b"J"]
    assert abs(messages[0]["clock"] - time.time()) < 60
    assert "facts" in messages[1]


def test_a_step_that_fails_costs_only_itself() -> None:
    facts = gather(
        [("a", lambda: {"x": 1}), ("b", lambda: [][0]), ("c", lambda: {"d": {"p": 1}}), ("e", lambda: {"d": {"q": 2}})],
        5.0,
    )
    assert facts["x"] == 1 and facts["d"] == {"p": 1, "q": 2} and facts["timed_out"] == []
    assert list(facts["failed"]) == ["b"] and "IndexError" in facts["failed"]["b"]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/data/set/x", ("nfs4", "server:/export")),
        ("/data", ("ext4", "/dev/sda1")),
        ("/with space/x", ("xfs", "/dev/sdb")),
        ("/dataset", ("ext4", "/dev/sda1")),
    ],
)
def test_file_systems_by_the_mount_table(path: str, wanted: tuple[str, str]) -> None:
    table = (
        "rootfs / rootfs rw 0 0\n/dev/sda1 / ext4 rw 0 0\nserver:/export /data/set nfs4 rw 0 0\n"
        "/dev/sdb /with\\040space xfs rw 0 0\nbroken\n\n"
    )
    assert filesystem(path, table) == wanted


def test_netlink_answers_that_are_cut_or_odd() -> None:
    address = struct.pack("=HH4s", 8, 2, socket.inet_aton("10.1.2.3"))
    body = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 7) + address
    message = struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 1) + body
    done = struct.pack("=IHHII", 16, 3, 0, 1, 1)
    parse = parse_addresses
    assert parse(message + done) == [Held(7, "", "10.1.2.3", 24), None]
    alias = body + struct.pack("=HH8s", 12, 3, b"eth0:1")  # its name, as getifaddrs() has it
    assert parse(struct.pack("=IHHII", 16 + len(alias), 20, 0, 1, 1) + alias)[0] == Held(7, "eth0:1", "10.1.2.3", 24)
    assert parse(b"") == [] and parse(message[:10]) == []
    assert parse(b"\0" * 64) == [None], "a length of zero must not loop"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_driver_version_texts(tmp_path: Path) -> None:
    texts = {
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version: 11\n": "535.129.03",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n": "580.65.06",
        "": None,
        "no version here": None,
    }
    code = "import json; from fleet.node.facts import tools; from pathlib import Path\n"
    code += f"for text in {list(texts)}:\n Path('/proc/driver/nvidia/version').write_text(text)\n"
    code += " print(json.dumps(tools.driver()['driver']))"
    told = in_mounts("mount -t tmpfs tmpfs /proc/driver && mkdir /proc/driver/nvidia", code)
    assert [json.loads(line) for line in told.splitlines()] == list(texts.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_the_number_of_a_gpus_device_file() -> None:
    """As the driver has it: nvidia-smi's index counts the GPUs that are left."""
    code = "import json; from fleet.node.facts import gpus; from pathlib import Path\n"
    for place, uuid, minor in (("01", "GPU-aa", "0"), ("02", "GPU-bb", "3"), ("03", "GPU-????????", "none")):
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96\nDevice Minor: \t {minor}\n"
        folder = f"/proc/driver/nvidia/gpus/0000:{place}:00.0"
        code += f"Path('{folder}').mkdir(parents=True); Path('{folder}/information').write_text({text!r})\n"
    code += (
        "print(json.dumps(gpus.whole([{'index': 0, 'uuid': 'GPU-aa'}, {'index': 1, 'uuid': 'GPU-bb'}, {'index': 2}])))"
    )
    told = json.loads(in_mounts("mount -t tmpfs tmpfs /proc/driver && mkdir /proc/driver/nvidia", code))
    assert [each.get("minor") for each in told] == [0, 3, None]
