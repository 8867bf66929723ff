"""The engine accelerate: its configuration, and what it is given on a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.engines import engine
from fleet.errors import UsageError
from fleet.model import Job
from tests.worlds import NODES, WORLD


def prepared(folder: Path, config: str, *args: str, **options: Any) -> Job:
    (folder / "a.yaml").write_text(config)
    own = {"config-file": "a.yaml", **{name.replace("_", "-"): value for name, value in options.items()}}
    job = Job("t.py", engine="accelerate", engine_args=args, engine_options=own)
    engine("accelerate").check(job)
    return engine("accelerate").prepare(job, folder)


def test_accelerate_on_cpus_is_told_so_by_its_configuration_too(tmp_path: Path) -> None:
    """It shares the cores out to the ranks only then."""
    job = engine("accelerate").prepare(Job("t.py", engine_options={"cpu": True}), tmp_path)
    assert "use_cpu: true" in job.files["accelerate.yaml"]


def test_accelerates_configuration_goes_along_as_it_is(tmp_path: Path) -> None:
    config = "# mine\ndistributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_multinode_launcher: pdsh}\n"
    job = prepared(tmp_path, config, "--debug", zero_stage="2", use_deepspeed=True)
    assert job.files == {"accelerate.yaml": config}
    argv = [str(w) for w in engine("accelerate").start(job, WORLD, NODES[1], "/py").argv]
    assert argv[4:9] == ["--config_file", "{run_dir}/accelerate.yaml", "--zero_stage=2", "--use_deepspeed", "--debug"]
    for option in ("--num_processes=6", "--machine_rank=1", "--num_machines=2", "--main_process_ip=10.0.0.1"):
        assert argv.index(option) > argv.index("--debug")
    assert "--deepspeed_multinode_launcher=standard" in argv
    assert argv[-6:] == ["--no_python", "{python}", "{run_dir}/spawn.py", "2", "3", "TORCHELASTIC_RUN_ID"]


def test_accelerate_without_a_configuration_gets_one_that_says_nothing(tmp_path: Path) -> None:
    job = engine("accelerate").prepare(Job("t.py"), tmp_path)
    assert list(job.files) == ["accelerate.yaml"] and "'NO'" in job.files["accelerate.yaml"]


def test_accelerates_default_configuration_is_named_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text("distributed_type: MULTI_GPU\n")
    job = engine("accelerate").prepare(Job("t.py"), tmp_path)
    assert "'NO'" in job.files["accelerate.yaml"] and "default_config.yaml is not read by default" in job.notes[0]
    assert prepared(tmp_path, "distributed_type: 'NO'\n").notes == ()


def test_accelerates_mpirun_would_be_a_fan_out_of_its_own(tmp_path: Path) -> None:
    job = prepared(tmp_path, "distributed_type: MULTI_CPU\nuse_cpu: true\nmpirun_config: {mpirun_hostfile: h}\n")
    assert job.files["accelerate.yaml"] == "distributed_type: MULTI_CPU\nuse_cpu: true\n"


@pytest.mark.parametrize(
    ("config", "args", "said"),
    [
        ("distributed_type: [\n", (), "a.yaml:2: no YAML"),
        ("num_machines: 2\n", (), "has no distributed_type"),
        ("- 1\n", (), "has no distributed_type"),
        ("distributed_type: XLA\n", (), "TPU"),
        ("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n", (), "AMAZON_SAGEMAKER"),
        ("distributed_type: 'NO'\n", ("--num-processes", "8"), "--num-processes: fleet itself passes that"),
        ("distributed_type: 'NO'\n", ("--machine_rank=1",), "--machine_rank: fleet itself"),
        ("distributed_type: 'NO'\n", ("--config_file", "b"), "--config_file: fleet itself"),
    ],
)
def test_what_accelerate_cannot_be_given(tmp_path: Path, config: str, args: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepared(tmp_path, config, *args)
    assert said in str(caught.value)


def test_what_accelerate_needs_of_a_node_is_in_its_configuration(tmp_path: Path) -> None:
    accelerate = engine("accelerate")
    deepspeed, cpu, gpu = (
        prepared(tmp_path, f"distributed_type: {text}\n") for text in ("DEEPSPEED", "MULTI_CPU\nuse_cpu: true", "FSDP")
    )
    assert accelerate.needs(deepspeed) == ("torch", "accelerate", "deepspeed")
    assert accelerate.needs(gpu) == ("torch", "accelerate")
    assert [accelerate.on_gpus(job) for job in (deepspeed, cpu, gpu)] == [False, False, True]
    assert not accelerate.on_gpus(replace(gpu, env={"ACCELERATE_USE_CPU": "true"}))
    assert not accelerate.on_gpus(prepared(tmp_path, "distributed_type: 'NO'\n", cpu=True))
    assert accelerate.unread(gpu) == () and accelerate.unread(Job("t.py"))


def test_accelerates_configuration_is_looked_for_here(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="configuration b.yaml: No such file"):
        prepared(tmp_path, "", config_file="b.yaml")


@pytest.mark.parametrize(("more", "told"), [("", True), ("  zero3_save_16bit_model: true\n", False)])
def test_accelerates_zero3_that_saves_nothing_is_told_before_it_trains(tmp_path: Path, more: str, told: bool) -> None:
    config = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n{more}"
    (tmp_path / "default.yaml").write_text(config)
    job = engine("accelerate").prepare(Job("t.py", engine_options={"config-file": "default.yaml"}), tmp_path)
    assert bool(job.notes) is told and all("default.yaml has ZeRO-3" in note for note in job.notes)
