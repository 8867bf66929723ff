"""Builds as they are planned: with which variables, and what is looked for in the wheel; nothing is compiled here."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import HostFailed, UsageError
from fleet.ops.build import check_ops, installed_ops
from tests.in_process import fleet_here


def planned(*what: Any, **options: Any) -> dict[str, Any]:
    return fleet_here("gpu01", "gpu02").plan.build(*what, **options).describe()


def test_the_environment_of_a_deepspeed_build() -> None:
    made = planned("deepspeed", ops=("cpu_adam", "utils"), cpu=True)
    assert made["env"] == {
        "DS_BUILD_OPS": "0",
        "DS_BUILD_CPU_ADAM": "1",
        "DS_BUILD_UTILS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    assert made["ops"] == ["cpu_adam", "utils"]
    made = planned("deepspeed", arch="8.0;9.0")
    assert made["env"]["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0" and "DS_ACCELERATOR" not in made["env"]
    assert "fused_adam" in made["ops"]


def test_the_ops_in_a_wheel() -> None:
    text = "version='0.19.8'\ninstalled_ops={'async_io': False, 'cpu_adam': 1, 'utils': True}\ntorch_info={'x': 'y'}\n"
    assert installed_ops(text) == {"async_io": False, "cpu_adam": True, "utils": True}
    assert installed_ops("") == {}


@pytest.mark.parametrize("name", ["shm_comm", "deepspeed_shm_comm"])
def test_an_op_is_known_by_both_of_deepspeeds_names(name: str, tmp_path: Path) -> None:
    assert planned("deepspeed", ops=(name,))["env"]["DS_BUILD_SHM_COMM"] == "1"
    with zipfile.ZipFile(tmp_path / "d.whl", "w") as wheel:
        text = "installed_ops={'deepspeed_shm_comm': 1, 'cpu_adam': False}"
        wheel.writestr("deepspeed/git_version_info_installed.py", text)
    check_ops(tmp_path / "d.whl", [name], "gpu01")
    with pytest.raises(HostFailed, match="lacks cpu_adam"):
        check_ops(tmp_path / "d.whl", ["cpu_adam"], "gpu01")


@pytest.mark.parametrize("content", [b"no zip", b""])
def test_a_built_wheel_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr("x.py", "")
    path.write_bytes(content or buffer.getvalue())
    with pytest.raises(HostFailed, match="no wheel of deepspeed"):
        check_ops(path, ("cpu_adam",), "evil")


def test_plans_that_make_no_sense(tmp_path: Path) -> None:
    def refused(says: str, *args: Any, **more: Any) -> None:
        with pytest.raises(UsageError, match=says):
            planned(*args, **more)

    refused("no host 'gpu09'", "deepspeed", on="gpu09")
    refused("no op", "deepspeed", ops=("cpu_adam=1",))
    refused("exclude each other", "deepspeed", version="0.19.8", source=tmp_path)
    refused("does not exist", str(tmp_path / "nowhere"))
    refused("neither pyproject.toml nor setup.py", str(tmp_path))
    (tmp_path / "setup.py").write_text("")
    refused("belong to 'fleet build deepspeed'", str(tmp_path), ops=("cpu_adam",))
    refused("is a file", str(tmp_path / "setup.py"))
    made = planned(str(tmp_path), on="gpu02")
    assert made["on"] == "gpu02" and made["arch"] == "auto"


def test_the_plan_shows_what_would_be_run() -> None:
    shown = planned("deepspeed", cpu=True)
    assert shown["source"].startswith("deepspeed==0.19.8") and shown["arch"] == "cpu"
    assert shown["env"] == {"DS_BUILD_OPS": "0", "DS_BUILD_CPU_ADAM": "1", "DS_ACCELERATOR": "cpu"}
    assert shown["argv"][1:4] == ["-m", "pip", "wheel"]
    told = planned("deepspeed", arch="8.0")
    assert told["env"]["TORCH_CUDA_ARCH_LIST"] == "8.0"
