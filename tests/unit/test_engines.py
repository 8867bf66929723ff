"""Engines: what each starts on a node, and that no engine's parser ever sees the script's own arguments."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from fleet.engines import ENGINES, check, engine, suited
from fleet.errors import UsageError
from fleet.model import Job, Node
from tests.worlds import ALONE, NODES, WORLD

ARGS = ("--m", "1", "--l", "--r", "--", "$$", "${local_rank}", "it's", "", "a\nb", "--nnodes=9")


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
    told = [engine("deepspeed").start(job, world, NODES[0], "/py").argv[2] for world in (WORLD, ALONE)]
    assert told == ["--workdir-first" if first else "deepspeed.launcher.launch", "deepspeed.launcher.launch"]


def test_what_the_import_of_colossalai_sets(tmp_path: Path) -> None:
    for given, env in (({}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), ({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {})):
        assert engine("colossalai").start(Job("t.py", env=given), WORLD, NODES[0], "/py").env == env


def test_engine_args_stand_before_fleets_own_words() -> None:
    for name in ("torchrun", "deepspeed"):
        argv = words(name, engine_args=("--log_level=error",))
        assert argv.index("--log_level=error") < argv.index("{python}")


@pytest.mark.parametrize("option", ["--nnodes=2:4", "--node_rank=1", "--nproc_per_node=6", "--master_port=1"])
def test_what_each_agent_is_told_is_not_told_twice(option: str) -> None:
    """The second --nnodes would win, and the agents wait for nodes that nobody starts."""
    with pytest.raises(UsageError, match="fleet itself passes that to torchrun") as caught:
        engine("torchrun").check(Job("t.py", engine="torchrun", engine_args=(option,)))
    assert "leave it away" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "hint"),
    [("master_port=1", "--master-port PORT"), ("tee=3,nproc_per_node=8", "--nproc-per-node N"), ("standalone", "away")],
)
def test_what_colossalais_launcher_is_told_by_fleet(given: str, hint: str) -> None:
    job = Job("t.py", engine="colossalai", engine_options={"extra-launch-args": given})
    with pytest.raises(UsageError, match="fleet itself passes that to colossalai") as caught:
        engine("colossalai").check(job)
    assert hint in str(caught.value.hint)


def test_an_unknown_engine_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no engine 'horovod'"):
        engine("horovod")


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
    (here / ".deepspeed_env").write_text("B = two words\nP=plain\n\nexport L=$PATH:/opt\nURL=x=y\n# no more\n")
    job = engine("deepspeed").prepare(Job("t.py", env={"C": "given"}), here)
    assert job.env == {"A": "home", "B": "two words", "P": "plain", "URL": "x=y", "C": "given"}
    assert job.env_expand == {"L": "$PATH:/opt"}
    assert job.notes == (f"{home}/.deepspeed_env sets A, B, P, C", f"{here}/.deepspeed_env sets B, P, L, URL")
    monkeypatch.setenv("DS_ENV_FILE", "other")
    (here / "other").write_text("no sign\n")
    with pytest.raises(UsageError, match="no '=' in this line") as caught:
        engine("deepspeed").prepare(Job("t.py"), here)
    assert caught.value.where == f"{here}/other:1"


CODE = ["$(id)", "`id`", "a$(id)", "$((1))", "${B:-d}", "$$", "$1", '"a;b"', '"a|b"', '"(a)"', '"', '"it\'s"']


@pytest.mark.parametrize("value", CODE)
def test_no_code_of_deepspeeds_file_is_run(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    monkeypatch.delenv("DS_ENV_FILE", raising=False)
    (tmp_path / ".deepspeed_env").write_text(f"A={value}\n")
    with pytest.raises(UsageError, match=r"\.deepspeed_env: A: a ") as caught:
        engine("deepspeed").prepare(Job("t.py"), tmp_path)
    assert len(value) < 3 or value not in str(caught.value), "it may be a secret"


@pytest.mark.parametrize("name", list(ENGINES.own))
def test_any_engines_run_can_be_started_again(name: str) -> None:
    engine(name).check(Job("t.py", engine=name, max_restarts=1))


@pytest.mark.parametrize(
    ("script", "engine"),
    [("sft.sh", "command"), ("bin/sft.bash", "command"), ("bash", "command"), ("/bin/sh", "command")]
    + [(name, "torchrun") for name in ("train.py", "train", "sh.py", "bash/train.py", "torchrun")],
)
def test_the_engine_where_none_is_asked_for(script: str, engine: str) -> None:
    assert suited(script) == (engine, {"per": "node"} if engine == "command" else {})
