"""For which GPUs a build is, and which compilers can make it."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.errors import PreflightError, UsageError
from fleet.ops.build.judge import fleet_arch, given_arch, older_glibc, toolchain
from fleet.rules.compilers import capability, gcc_bounds


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
