"""Engines: what each starts on a node, and that no engine's parser ever sees the script's own arguments."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.engines import ENGINES, check, engine, suited
from fleet.engines.base import World, python_command
from fleet.errors import UsageError
from fleet.model import Host, Job, Node
from tests.command_lines import accept

NODES = (Node(Host("a", "10.0.0.1", slots=2), 0, 2, 0), Node(Host("b", "10.0.0.2", devices=(1, 3, 5)), 1, 3, 2))
WORLD = World("run-1", NODES, "10.0.0.1", 20000, {"b": "10.0.0.2"})
ARGS = ("--m", "1", "--l", "--r", "--", "$$", "${local_rank}", "it's", "", "a\nb", "--nnodes=9")
REMOTE = Path(fleet.__file__).parent / "node/run/rank"


def words(name: str, node: Node = NODES[1], **job: object) -> list[str]:
    return [str(w) for w in engine(name).start(Job("train.py", ARGS, **job), WORLD, node, "/py").argv]


@pytest.mark.parametrize("name", list(ENGINES.own))
def test_the_scripts_arguments_travel_by_file_only(name: str) -> None:
    start = engine(name).start(Job("train.py", ARGS), WORLD, NODES[1], "/py")
    assert not {"train.py", *ARGS[:2], *ARGS[5:]} & {str(w) for w in start.argv}
    assert json.loads(start.command_file())["argv"][-len(ARGS) :] == list(ARGS)


def test_torchrun_is_static_and_ends_its_options() -> None:
    argv = words("torchrun")
    assert argv[:4] == ["/py", "{run_dir}/console.py", "torch.distributed.run", "torchrun"]
    for option in (
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=3",
        "--master-addr=10.0.0.1",
        "--master-port=20000",
        "--rdzv-id=run-1",
        "--local-addr=10.0.0.2",
        "--max-restarts=0",
    ):
        assert option in argv
    assert argv[argv.index("--no-python") + 1 :] == ["--", "{python}", "{run_dir}/spawn.py"]
    env = engine("torchrun").start(Job("t"), WORLD, NODES[1], "/py").env
    assert env == {"CUDA_VISIBLE_DEVICES": "1,3,5"}


def test_fleet_restarts_and_torchrun_does_not() -> None:
    assert words("torchrun", max_restarts=2) == words("torchrun")


def test_deepspeed_gets_the_world_in_node_rank_order_with_devices() -> None:
    argv = words("deepspeed")
    info = next(w for w in argv if w.startswith("--world_info=")).partition("=")[2]
    world = json.loads(base64.urlsafe_b64decode(info))
    assert list(world.items()) == [("a", [0, 1]), ("b", [1, 3, 5])]
    assert engine("deepspeed").start(Job("t"), WORLD, NODES[0], "/py").local_rank_at == 3
    plain = Job("t", engine_args=("--no_local_rank",))
    assert engine("deepspeed").start(plain, WORLD, NODES[0], "/py").local_rank_at is None


@pytest.mark.parametrize(
    ("job", "first"),
    [
        (Job("train.py"), False),
        (Job("./train.py"), False),
        (Job("pkg.train", kind="module"), False),
        (Job("scripts/train.py"), True),
        (Job("./train", kind="program"), True),
    ],
)
def test_deepspeeds_ranks_find_the_workdir_as_its_runner_has_it(job: Job, first: bool) -> None:
    """It exports PYTHONPATH where there are several nodes."""
    alone = World("run-1", NODES[:1], "10.0.0.1", 20000)
    told = [engine("deepspeed").start(job, world, NODES[0], "/py").argv[2] for world in (WORLD, alone)]
    assert told == ["--workdir-first" if first else "deepspeed.launcher.launch", "deepspeed.launcher.launch"]


def test_what_the_import_of_colossalai_sets(tmp_path: Path) -> None:
    for given, env in (({}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), ({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {})):
        assert engine("colossalai").start(Job("t.py", env=given), WORLD, NODES[0], "/py").env == env


def test_accelerate_on_cpus_is_told_so_by_its_configuration_too(tmp_path: Path) -> None:
    """It shares the cores out to the ranks only then."""
    job = engine("accelerate").prepare(Job("t.py", engine_options={"cpu": True}), tmp_path)
    assert "use_cpu: true" in job.files["accelerate.yaml"]


def test_engine_args_stand_before_fleets_own_words() -> None:
    for name in ("torchrun", "deepspeed"):
        argv = words(name, engine_args=("--log_level=error",))
        assert argv.index("--log_level=error") < argv.index("{python}")


def prepared(folder: Path, config: str, *args: str, **options: Any) -> Job:
    (folder / "a.yaml").write_text(config)
    own = {"config-file": "a.yaml", **{name.replace("_", "-"): value for name, value in options.items()}}
    job = Job("t.py", engine="accelerate", engine_args=args, engine_options=own)
    engine("accelerate").check(job)
    return engine("accelerate").prepare(job, folder)


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


@pytest.mark.parametrize("option", ["--nnodes=2:4", "--node_rank=1", "--nproc_per_node=6", "--master_port=1"])
def test_what_each_agent_is_told_is_not_told_twice(option: str) -> None:
    """The second --nnodes would win, and the agents wait for nodes that nobody starts."""
    with pytest.raises(UsageError, match="fleet itself tells that torchrun") as caught:
        engine("torchrun").check(Job("t.py", engine="torchrun", engine_args=(option,)))
    assert "leave it away" in str(caught.value.hint)


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
    assert "'NO'" in job.files["accelerate.yaml"] and "default_config.yaml is not read unasked" in job.notes[0]
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
        ("distributed_type: 'NO'\n", ("--num-processes", "8"), "--num-processes: fleet itself tells"),
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


@pytest.mark.parametrize(
    ("given", "hint"),
    [("master_port=1", "--master-port PORT"), ("tee=3,nproc_per_node=8", "--nproc-per-node N"), ("standalone", "away")],
)
def test_what_colossalais_launcher_is_told_by_fleet(given: str, hint: str) -> None:
    job = Job("t.py", engine="colossalai", engine_options={"extra-launch-args": given})
    with pytest.raises(UsageError, match="fleet itself tells that colossalai") as caught:
        engine("colossalai").check(job)
    assert hint in str(caught.value.hint)


def test_an_unknown_engine_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no engine 'horovod'"):
        engine("horovod")


def spawn(
    tmp_path: Path, argv: list[str], *words: str, at: int | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    for name in ("rank", "drain", "spawn"):
        (tmp_path / f"{name}.py").write_bytes((REMOTE / f"{name}.py").read_bytes())
    (tmp_path / "command.json").write_text(json.dumps({"argv": argv, "local_rank_at": at}))
    return subprocess.run(
        [sys.executable, "-I", "-S", tmp_path / "spawn.py", *words],
        capture_output=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "FLEET_RUN_DIR": str(tmp_path), **env},
    )


def test_spawn_hands_a_rank_its_argv_byte_for_byte(tmp_path: Path) -> None:
    odd = [*ARGS, "\udcff\udc80", "é"]
    show = "import os,sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
    done = spawn(tmp_path, [sys.executable, "-c", show, *odd], RANK="7", LOCAL_RANK="1")
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "rank7.out").read_bytes()
    assert said == b"|".join(a.encode("utf-8", "surrogateescape") for a in odd)


def test_spawn_puts_local_rank_where_deepspeed_would(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[1:])"
    spawn(tmp_path, [sys.executable, "-u", "-c", show, "--x"], RANK="0", LOCAL_RANK="3", at=4)
    assert (tmp_path / "rank0.out").read_text() == "['--local_rank=3', '--x']\n"


def test_spawn_as_the_engine_ends_the_others_with_the_first_failure(tmp_path: Path) -> None:
    # a rank that is ended before it is there leaves no record: the failing one waits for the others
    script = """cd "$FLEET_RUN_DIR"; echo up
    [ "$RANK" = 5 ] || exec sleep 1000
    until grep -q up rank4.out && grep -q up rank6.out; do sleep 0.05; done
    exit 3"""
    done = spawn(tmp_path, ["sh", "-c", script], "4", "3")
    assert done.returncode == 3
    ends = {r: json.loads((tmp_path / f"rank{r}.json").read_text()) for r in (4, 5, 6)}
    assert ends[5]["status"] == 3 and ends[4]["signal"] == ends[6]["signal"] == 15
    assert [ends[r]["local_rank"] for r in (4, 5, 6)] == [0, 1, 2]


def test_spawn_as_the_engine_passes_a_signal_on_as_128_plus_n(tmp_path: Path) -> None:
    assert spawn(tmp_path, ["sh", "-c", "kill -9 $$"], "0", "1").returncode == 137


@pytest.mark.parametrize(
    ("script", "args", "engine", "hint"),
    [
        ("sft.sh", ("--lr", "1"), "torchrun", "fleet launch --engine command ./sft.sh --lr 1"),
        ("bin/sft.sh", (), "deepspeed", "fleet launch --engine command bin/sft.sh"),
        ("bash", ("run.sh",), "torchrun", "fleet launch --engine command bash run.sh"),
        ("python", ("train.py", "--lr", "1 2"), "torchrun", "fleet launch train.py --lr '1 2'"),
        ("/opt/bin/python3.11", ("-u", "train.py"), "torchrun", "fleet launch train.py"),
        ("python", ("-m", "pkg.train"), "torchrun", "fleet launch --engine command python -m pkg.train"),
        (
            "torchrun",
            ("--nnodes", "2", "--nproc_per_node=8", "train.py", "-n", "3"),
            "torchrun",
            "fleet launch --nproc-per-node 8 train.py -n 3",
        ),
        (
            "deepspeed",
            ("--num_gpus", "4", "train.py"),
            "torchrun",
            "fleet launch --engine deepspeed --nproc-per-node 4 train.py",
        ),
        ("accelerate", ("launch", "train.py"), "torchrun", "fleet launch --engine accelerate train.py"),
        ("mpirun", ("-np", "8", "train.py"), "torchrun", "fleet launch train.py"),
    ],
)
def test_what_python_cannot_start_is_told_what_to_write(
    script: str, args: tuple[str, ...], engine: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        python_command(Job(script, args, engine), "python3")
    assert caught.value.hint == hint
    accept(hint)


def test_a_python_script_is_what_it_says() -> None:
    for script in ("train.py", "train", "python.py", "a.sh.py"):
        assert python_command(Job(script), "p")[2] == script
    assert python_command(Job("-t.py"), "p")[2] == "./-t.py", "no option of Python's"


@pytest.mark.parametrize(
    ("name", "job", "command", "at"),
    [
        ("torchrun", Job("pkg.train", ("-x",), kind="module"), ("/py", "-u", "-m", "pkg.train", "-x"), None),
        ("deepspeed", Job("pkg.train", ("-x",), kind="module"), ("/py", "-u", "-m", "pkg.train", "-x"), 4),
        ("deepspeed", Job("./tool", ("-x",), kind="program"), ("./tool", "-x"), 1),
        ("command", Job("pkg.train", ("-x",), kind="module"), ("/py", "-u", "-m", "pkg.train", "-x"), None),
        ("command", Job("sft.sh", ("-x",)), ("sft.sh", "-x"), None),
    ],
)
def test_modules_and_programs(name: str, job: Job, command: tuple[str, ...], at: int | None) -> None:
    start = engine(name).start(job, WORLD, NODES[1], "/py")
    assert (start.command, start.local_rank_at) == (command, at)


def test_an_option_of_another_engine_is_told_whose_it_is() -> None:
    with pytest.raises(UsageError) as caught:
        check(Job("train.py", engine_options={"per": "node"}))
    assert str(caught.value) == "--per: engine torchrun has no such option"
    assert caught.value.hint == "it is for --engine command"


def test_deepspeeds_own_options_reach_its_launcher() -> None:
    given = {"bind-cores-to-rank": True, "bind-core-list": "0-3", "no-local-rank": True}
    start = engine("deepspeed").start(Job("t.py", engine_options=given), WORLD, NODES[0], "/py")
    assert {"--bind_cores_to_rank", "--bind_core_list=0-3"} < set(start.argv) and start.local_rank_at is None
    with pytest.raises(UsageError, match="binds nothing"):
        engine("deepspeed").check(Job("t.py", engine="deepspeed", engine_options={"bind-core-list": "0"}))


def test_deepspeeds_file_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its runner would have a shell export on each node: the current folder's over home's, the command's over
    both."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("DS_ENV_FILE", raising=False)
    (home / ".deepspeed_env").write_text("A=home\nB=home\nP=$HOME/x\nC=secret\n")
    (here / ".deepspeed_env").write_text('B = "two words"\nP=plain\n\nexport L=$PATH:/opt\nURL=x=y\n# no more\n')
    job = engine("deepspeed").prepare(Job("t.py", env={"C": "given"}), here)
    assert job.env == {"A": "home", "B": "two words", "P": "plain", "URL": "x=y", "C": "given"}
    assert job.env_expand == {"L": "$PATH:/opt"}
    assert job.notes == (f"{home}/.deepspeed_env sets A, B, P, C", f"{here}/.deepspeed_env sets B, P, L, URL")
    monkeypatch.setenv("DS_ENV_FILE", "other")
    (here / "other").write_text("no sign\n")
    with pytest.raises(UsageError, match="no '=' in this line") as caught:
        engine("deepspeed").prepare(Job("t.py"), here)
    assert caught.value.where == f"{here}/other:1"


@pytest.mark.parametrize("name", list(ENGINES.own))
def test_any_engines_run_can_be_started_again(name: str) -> None:
    engine(name).check(Job("t.py", engine=name, max_restarts=1))


@pytest.mark.parametrize(("more", "told"), [("", True), ("  zero3_save_16bit_model: true\n", False)])
def test_accelerates_zero3_that_saves_nothing_is_told_before_it_trains(tmp_path: Path, more: str, told: bool) -> None:
    config = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n{more}"
    (tmp_path / "default.yaml").write_text(config)
    job = engine("accelerate").prepare(Job("t.py", engine_options={"config-file": "default.yaml"}), tmp_path)
    assert bool(job.notes) is told and all("default.yaml has ZeRO-3" in note for note in job.notes)


@pytest.mark.parametrize(
    ("script", "engine"),
    [("sft.sh", "command"), ("bin/sft.bash", "command"), ("bash", "command"), ("/bin/sh", "command")]
    + [(name, "torchrun") for name in ("train.py", "train", "sh.py", "bash/train.py", "torchrun")],
)
def test_the_engine_where_none_is_asked_for(script: str, engine: str) -> None:
    assert suited(script) == (engine, {"per": "node"} if engine == "command" else {})
