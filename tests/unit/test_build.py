"""Builds: for which GPUs, with which compilers, and what a log means; nothing is compiled here."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import HostFailed, PreflightError, UsageError
from fleet.model import Host, Inventory
from fleet.ops.build import build_env, check_ops, installed_ops, plan, source
from fleet.ops.build.judge import fleet_arch, given_arch, older_glibc, toolchain
from fleet.ops.build.node import _told
from fleet.ops.build.source import fetch_deepspeed, unpack
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.messages.build import Built
from fleet.requests.hosts import Build
from fleet.rules.build_log import first_error, remedy
from fleet.rules.compilers import capability, gcc_bounds
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport

INVENTORY = Inventory((Host("gpu01", "a"), Host("gpu02", "b")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A800-SXM4-80GB", "8.0"),
        ("NVIDIA A10", "8.6"),
        ("NVIDIA A10G", "8.6"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA H800", "9.0"),
        ("NVIDIA H20", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("NVIDIA B200", "10.0"),
        ("NVIDIA GB200", "10.0"),
        ("NVIDIA B300 SXM6 AC", "10.3"),
        ("NVIDIA GeForce RTX 5090", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"),
        ("NVIDIA GeForce RTX 4090", "8.9"),
        ("NVIDIA GeForce RTX 4080 SUPER", "8.9"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA L4", "8.9"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "8.9"),
        ("NVIDIA GeForce RTX 3090", "8.6"),
        ("NVIDIA RTX A6000", "8.6"),
        ("NVIDIA A40", "8.6"),
        ("Tesla T4", "7.5"),
        ("Quadro RTX 6000", "7.5"),
        ("GeForce GTX 1660 Ti", "7.5"),
        ("NVIDIA TITAN RTX", "7.5"),
        ("Tesla V100-SXM2-32GB", "7.0"),
        ("NVIDIA TITAN V", "7.0"),
        ("Tesla P100-PCIE-16GB", "6.0"),
        ("Tesla P40", "6.1"),
        ("GeForce GTX 1080 Ti", "6.1"),
        ("Tesla K80", "3.7"),
        ("NVIDIA Graphics Device", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_the_table_of_gpus(name: str, value: str | None) -> None:
    assert capability(name) == value


def sdist(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            data = b"text\n" if member.isreg() else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname = kind, mode, link
    return member


def test_an_sdist_is_unpacked_by_a_python_whose_tarfile_has_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    good = sdist(
        tmp_path / "x-1.tar.gz",
        entry("x-1", tarfile.DIRTYPE, 0o755),
        entry("x-1/setup.py"),
        entry("x-1/bin/run", mode=0o4777),
        entry("x-1/empty", tarfile.DIRTYPE, 0),
    )
    inner = unpack(good, tmp_path / "to")
    assert inner == tmp_path / "to/x-1" and (inner / "setup.py").read_text() == "text\n"
    assert [stat.S_IMODE((inner / name).stat().st_mode) for name in ("setup.py", "bin/run")] == [0o644, 0o755]
    assert list((inner / "empty").iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        entry("../out"),
        entry("x-1/../../out"),
        entry("/tmp/fleet-out"),
        entry("x-1/link", tarfile.SYMTYPE, link="/etc"),
        entry("x-1/hard", tarfile.LNKTYPE, link="x-1/setup.py"),
        entry("x-1/dev", tarfile.CHRTYPE),
        entry("x-1/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: str(member.name),
)
def test_an_sdist_writes_nothing_but_files_below_its_folder(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises(HostFailed, match="which no source has"):
        unpack(sdist(tmp_path / "x-1.tar.gz", entry("x-1/setup.py"), bad, entry("x-1/link/later")), tmp_path / "w/to")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()} == {
        "x-1.tar.gz",
        "w/to/x-1/setup.py",
    }


def test_two_builds_at_once_share_one_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second took the first one's source away while that was carried to a node."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    waits, downloads, found = threading.Event(), list[str](), list[Path]()

    def pip(argv: list[str], runtime: Runtime, env: object = None) -> None:
        downloads.append(argv[-1])
        waits.wait(1.0 if len(downloads) > 1 else 60.0)
        sdist(Path(argv[argv.index("-d") + 1]) / "deepspeed-1.tar.gz", entry("deepspeed-1/setup.py"))

    def build() -> None:
        found.append(fetch_deepspeed("1", Runtime(LocalTransport(), emit=lambda event: waits.set())))

    monkeypatch.setattr(source, "run_pip", pip)
    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads == ["deepspeed==1"] and found == [tmp_path / "cache/fleet/sources/deepspeed-1"] * 2
    assert (found[0] / "setup.py").is_file() and len(list(found[0].parent.iterdir())) == 1


def test_what_is_no_sdist_is_said(tmp_path: Path) -> None:
    whole = sdist(tmp_path / "x-1.tar.gz", entry("x-1/setup.py")).read_bytes()
    for content in (b"", b"<html>", whole[:-20], whole[:40] + b"?" * 40):
        (tmp_path / "y.tar.gz").write_bytes(content)
        with pytest.raises(HostFailed, match="y.tar.gz is no sdist"):
            unpack(tmp_path / "y.tar.gz", tmp_path / "to")


def node(*gpus: str, **changes: Any) -> dict[str, Any]:
    """A node that can compile for its GPUs."""
    cuda = "12.4" if gpus else None
    compiler = {"path": "/usr/bin/gcc", "version": "12.2.0"}
    return {
        "activate": None,
        "python": {"executable": "/opt/python", "version": "3.11.7", "error": None},
        "torch": {"version": "2.6.0", "cuda": cuda, "hip": None},
        "gpus": [{"name": g, "capability": None} for g in gpus],
        "gpu_error": None,
        "cc": compiler,
        "cxx": compiler,
        "nvcc": {"path": "/n", "version": cuda} if cuda else None,
        "ninja": None,
        "headers": "/usr/include/Python.h",
        "glibc": "2.36",
        "backends": {"pip": True, "setuptools": True, "wheel": True},
        **changes,
    }


def test_the_arch_list_is_of_all_gpus_of_all_hosts() -> None:
    assert fleet_arch({"a": node("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"), "b": node("Tesla V100"), "c": node()}) == (
        "7.0",
        "9.0",
    )
    assert fleet_arch({"a": node(), "b": node()}) == ()
    # ascending as numbers, and the driver knows better than the table
    told = node("NVIDIA H100 PCIe", "NVIDIA B200")
    told["gpus"][1]["capability"] = "10.3"
    assert fleet_arch({"a": told}) == ("9.0", "10.3")


def test_gpus_that_cannot_be_told() -> None:
    with pytest.raises(PreflightError, match="NVIDIA Graphics Device on gpu02") as caught:
        fleet_arch({"gpu01": node("Tesla V100"), "gpu02": node("NVIDIA Graphics Device")})
    assert "--arch" in (caught.value.hint or "")
    with pytest.raises(PreflightError, match="driver/library"):
        fleet_arch({"gpu01": node(gpu_error="driver/library version mismatch")})


def test_a_node_that_can_build() -> None:
    assert toolchain(node(), (), needs_torch=True) == []
    assert toolchain(node("NVIDIA H100"), ("9.0",), needs_torch=True) == []


GCC14 = {"path": "/usr/bin/gcc-14", "version": "14.1.0"}
GCC7 = {"path": "/usr/bin/gcc", "version": "7.3.1"}


@pytest.mark.parametrize(
    ("changes", "arch", "says", "hint"),
    [
        ({"cxx": None}, (), r"no g\+\+", "apt-get install g++"),
        ({"cc": GCC7}, (), r"gcc 7\.3\.1 is too old for torch 2\.6\.0, which wants 9", "devtoolset-11"),
        ({"cc": GCC14}, ("9.0",), r"gcc 14\.1\.0 is too new for nvcc 12\.4, which takes up to 13", "gcc-toolset-13"),
        ({"nvcc": None}, ("9.0",), "no nvcc there", "CUDA toolkit 12.4"),
        (
            {"nvcc": {"path": "n", "version": "13.0"}},
            ("9.0",),
            r"nvcc is 13\.0, torch is built with CUDA 12\.4",
            "12.x",
        ),
        ({}, ("10.0",), r"nvcc 12\.4 does not know compute capability 10\.0", "CUDA 12.8"),
        ({"torch": None}, (), "torch is not in", "fleet sync --wheels"),
        ({"torch": {"version": "2.6.0+cpu", "cuda": None, "hip": None}}, ("9.0",), "built without CUDA", "--cpu"),
        ({"headers": None}, (), r"Python\.h", "python3-dev"),
        ({"backends": {"pip": True, "setuptools": False, "wheel": True}}, (), "lacks setuptools", "sync their wheels"),
        ({"backends": {"pip": True, "setuptools": True, "wheel": False}}, (), "lacks wheel,", "sync their wheels"),
        ({"activate": "no such file"}, (), "activate line failed", "bash"),
        ({"python": {"executable": None, "error": "x: no such program"}}, (), "no such program", "'python'"),
    ],
)
def test_what_keeps_a_node_from_building(changes: dict[str, Any], arch: tuple[str, ...], says: str, hint: str) -> None:
    facts = node(*(["NVIDIA H100"] if arch else []), **changes)
    errors = toolchain(facts, arch, needs_torch=True)
    with pytest.raises(PreflightError, match=says):
        raise errors[0]
    assert hint in (errors[0].hint or "")
    assert len(errors) == 1


def test_an_old_gcc_is_no_matter_without_torch() -> None:
    assert toolchain(node(cc=GCC7, cxx=GCC7, torch=None), (), needs_torch=False) == []


@pytest.mark.parametrize(
    ("torch", "cuda", "bounds"),
    [
        ("2.6.0+cu124", "12.4", (9, 13)),
        ("1.13.1", "11.7", (5, 11)),
        ("2.0.1", "11.8", (7, 11)),
        ("2.9", "13.1", (9, 15)),
        (None, "10.2", (None, 8)),
        ("2.6.0", None, (9, None)),
        ("2.6.0", "8.0", (9, None)),
    ],
)
def test_bounds_of_gcc(torch: str | None, cuda: str | None, bounds: tuple[int | None, int | None]) -> None:
    assert gcc_bounds(torch, cuda) == bounds


def test_a_newer_glibc_than_elsewhere_is_said() -> None:
    facts = {"a": node(glibc="2.36"), "b": node(glibc="2.17"), "c": node(glibc="2.31")}
    assert "--on b builds for all" in (older_glibc(facts, "a") or "")
    assert older_glibc(facts, "b") is None
    assert older_glibc({"a": node(glibc=None), "b": node()}, "a") is None


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("auto", ()),
        ("8.0;9.0", ("8.0", "9.0")),
        ("8.0,9.0a", ("8.0", "9.0a")),
        ("7.0 8.6+PTX", ("7.0", "8.6+PTX")),
    ],
)
def test_arch_as_given(text: str, arch: tuple[str, ...]) -> None:
    assert given_arch(text) == arch


@pytest.mark.parametrize("text", ["", "80", "sm_80", "8.0;", ";;", "8.0;$(id)", "A100"])
def test_arch_that_is_none(text: str) -> None:
    if text == "8.0;":
        assert given_arch(text) == ("8.0",)
        return
    with pytest.raises(UsageError, match="--arch"):
        given_arch(text)


def test_the_environment_of_a_deepspeed_build() -> None:
    made = plan(INVENTORY, Build("deepspeed", ops=("cpu_adam", "utils")))
    assert build_env(made, (), {}) == (
        {"DS_BUILD_OPS": "0", "DS_BUILD_CPU_ADAM": "1", "DS_BUILD_UTILS": "1", "DS_ACCELERATOR": "cpu"},
        ("cpu_adam", "utils"),
    )
    env, ops = build_env(plan(INVENTORY, Build("deepspeed")), ("8.0", "9.0"), {"MAX_JOBS": "4"})
    assert env["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0" and env["MAX_JOBS"] == "4" and "DS_ACCELERATOR" not in env
    assert "fused_adam" in ops


def test_the_ops_in_a_wheel() -> None:
    text = "version='0.19.8'\ninstalled_ops={'async_io': False, 'cpu_adam': 1, 'utils': True}\ntorch_info={'x': 'y'}\n"
    assert installed_ops(text) == {"async_io": False, "cpu_adam": True, "utils": True}
    assert installed_ops("") == {}


@pytest.mark.parametrize("name", ["shm_comm", "deepspeed_shm_comm"])
def test_an_op_is_known_by_both_of_deepspeeds_names(name: str, tmp_path: Path) -> None:
    chosen = plan(INVENTORY, Build("deepspeed", ops=(name,)))
    assert build_env(chosen, (), {})[0]["DS_BUILD_SHM_COMM"] == "1"
    with zipfile.ZipFile(tmp_path / "d.whl", "w") as wheel:
        text = "installed_ops={'deepspeed_shm_comm': 1, 'cpu_adam': False}"
        wheel.writestr("deepspeed/git_version_info_installed.py", text)
    check_ops(tmp_path / "d.whl", [name], "gpu01")
    with pytest.raises(HostFailed, match="lacks cpu_adam"):
        check_ops(tmp_path / "d.whl", ["cpu_adam"], "gpu01")


def test_plans_that_make_no_sense(tmp_path: Path) -> None:
    def refused(says: str, *args: Any, **more: Any) -> None:
        with pytest.raises(UsageError, match=says):
            plan(INVENTORY, Build(*args, **more))

    refused("no host 'gpu09'", "deepspeed", on="gpu09")
    refused("no op", "deepspeed", ops=("cpu_adam=1",))
    refused("exclude each other", "deepspeed", version="0.19.8", source=tmp_path)
    refused("does not exist", str(tmp_path / "nowhere"))
    refused("neither pyproject.toml nor setup.py", str(tmp_path))
    (tmp_path / "setup.py").write_text("")
    refused("belong to 'fleet build deepspeed'", str(tmp_path), ops=("cpu_adam",))
    refused("is a file", str(tmp_path / "setup.py"))
    made = plan(INVENTORY, Build(str(tmp_path), on="gpu02"))
    assert made.host.name == "gpu02" and made.describe()["arch"] == "auto"


def test_the_plan_shows_what_would_be_run() -> None:
    shown = plan(INVENTORY, Build("deepspeed", cpu=True)).describe()
    assert shown["source"].startswith("deepspeed==0.19.8") and shown["arch"] == "cpu"
    assert shown["env"] == {"DS_BUILD_OPS": "0", "DS_BUILD_CPU_ADAM": "1", "DS_ACCELERATOR": "cpu"}
    assert shown["argv"][1:4] == ["-m", "pip", "wheel"]
    told = plan(INVENTORY, Build("deepspeed", arch="8.0")).describe()
    assert told["env"]["TORCH_CUDA_ARCH_LIST"] == "8.0"


@pytest.mark.parametrize(
    ("log", "line", "help_"),
    [
        (
            "  gcc -c x.c\n  x.c:1:10: fatal error: Python.h: No such file or directory\n  compilation terminated.\n"
            "  error: command '/usr/bin/gcc' failed with exit code 1\n  error: subprocess-exited-with-error\n",
            "x.c:1:10: fatal error: Python.h: No such file or directory",
            "python3-dev",
        ),
        (
            "g++ -Werror=format -c a.cpp\na.cpp:3:5: error: 'f' was not declared\n1 error generated.\n",
            "a.cpp:3:5: error: 'f' was not declared",
            None,
        ),
        (
            "error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
            "error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!",
            "older one",
        ),
        (
            "Traceback (most recent call last):\n"
            "  File \"setup.py\", line 2\nModuleNotFoundError: No module named 'Cython'\n",
            "ModuleNotFoundError: No module named 'Cython'",
            "fleet sync --wheels",
        ),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_100'\n",
            "nvcc fatal   : Unsupported gpu architecture 'compute_100'",
            "--arch",
        ),
        (
            "/usr/bin/ld: cannot find -laio: No such file or directory\ncollect2: error: ld returned 1 exit status\n",
            "collect2: error: ld returned 1 exit status",
            "-dev package",
        ),
        (
            "LookupError: setuptools-scm was unable to detect version for /x\n",
            "LookupError: setuptools-scm was unable to detect version for /x",
            "PRETEND_VERSION",
        ),
        ("x.h:5: warning: error in comment\ncopying error.py -> build\nall fine\n", None, None),
    ],
)
def test_what_a_log_means(log: str, line: str | None, help_: str | None) -> None:
    assert first_error(log) == line
    found = remedy(log)
    assert found is None if help_ is None else help_ in (found or "")


@pytest.mark.parametrize("name", ["..", "../x-1-py3-none-any.whl", "build.log", 7, None, "a\nb-1-py3-none-any.whl"])
def test_a_node_does_not_choose_where_the_wheel_goes(name: object) -> None:
    told = {
        "event": "built",
        "file": "deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl",
        "sha256": hashlib.sha256(b"w").hexdigest(),
    }
    decode(Built, told)
    with pytest.raises(Misfit):
        decode(Built, {**told, "file": name})


def test_the_log_names_what_the_user_set_and_keeps_its_value() -> None:
    assert _told("DS_BUILD_OPS", "0") == "DS_BUILD_OPS=0" and _told("HF_TOKEN", "secret") == "HF_TOKEN"
