"""What to type after a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.answers.runs import FirstFailure, LeftEarly
from fleet.model import Host
from fleet.ops.run.end.failure import next_steps, typed_here
from tests.command_lines import accept
from tests.plans import planned

RUN = "t-20261122-060000-0a1b"


def steps(*said: str, runs_dir: str = "runs", **failure: Any) -> list[str]:
    hosts = (Host("gpu1", "10.0.0.1"), Host("gpu2", "10.0.0.2"))
    record = planned(*hosts, run=RUN, runs_dir=Path(runs_dir)).record(0.0)
    found = next_steps(replace(FirstFailure("gpu2", rank=1, log="rank1.err"), **failure), record, said)
    for line in found:
        if not line.startswith("cat "):
            accept(line)
    return found


def test_the_log_of_the_rank_that_failed() -> None:
    assert steps() == [f"fleet logs {RUN} --rank 1 --err --tail 100"]
    assert steps(log="rank1.out") == [f"fleet logs {RUN} --rank 1 --tail 100"]
    assert steps(what="engine", rank=None) == [f"fleet logs {RUN} --host gpu2 --tail 100"]


def test_the_log_of_the_rank_that_left_first_of_all() -> None:
    early = LeftEarly(0, "gpu1", 1.5)
    assert steps(left_early=early)[0] == f"fleet logs {RUN} --rank 0 --tail 100"


def test_the_run_once_more_without_a_host_that_is_to_blame() -> None:
    assert steps(what="node", rank=None, unfit="gpu2") == [f"fleet launch --again {RUN} -x gpu2"]
    assert steps(unfit="gpu2")[0] == f"fleet launch --again {RUN} -x gpu2" and len(steps(unfit="gpu2")) == 2


def test_once_more_where_it_was_not_the_scripts_fault() -> None:
    assert steps(what="lease", rank=None) == steps(what="supervisor", rank=None) == [f"fleet launch --again {RUN}"]


def test_the_stacks_of_a_run_that_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert steps(what="stalled", rank=None) == [], "who looked on has none"
    stacks = tmp_path / "runs" / RUN / "stacks.txt"
    stacks.parent.mkdir(parents=True)
    stacks.touch()
    assert steps(what="stalled", rank=None) == [f"cat runs/{RUN}/stacks.txt"]


def test_a_folder_of_runs_that_is_not_the_usual_one() -> None:
    assert steps(runs_dir="my runs") == [f"fleet logs {RUN} --rank 1 --err --tail 100 --runs-dir 'my runs'"]


def test_steps_of_a_leader_are_typed_from_the_folder_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader in the background is in none: to it, no runs/ is the usual one."""
    monkeypatch.chdir(tmp_path)
    usual = f"fleet logs {RUN} --rank 1"
    for step in (usual, f"{usual} --runs-dir {tmp_path}/runs"):
        assert typed_here(step, tmp_path / "runs") == typed_here(step, tmp_path / "else/../runs") == usual
        assert typed_here(step, tmp_path / "my runs") == f"{usual} --runs-dir '{tmp_path}/my runs'"
    for other in (f"fleet get {RUN}", f"cat /x/{RUN}/stacks.txt"):
        assert typed_here(other, tmp_path / "my runs") == other


def test_a_run_that_goes_on_without_this_machine_is_taken_up() -> None:
    assert steps(what="link", rank=None) == [f"fleet attach {RUN}"]


@pytest.mark.parametrize(
    "said",
    [
        "Epoch 3 | Training snapshot saved at snapshot.pt",
        "Saving model checkpoint to out/checkpoint-500",
        "=> saved ckpt/last.ckpt (step 100)",
        "[Rank 0] Saving model checkpoint: /w/global_step10/mp_rank_00_model_states.pt",
        "Saved checkpoint at step 9",
    ],
)
def test_what_a_script_saved_is_fetched(said: str) -> None:
    assert steps("loss 3\n" + said + "\nloss 2")[-1] == f"fleet get {RUN}"


@pytest.mark.parametrize("said", ["loading snapshot from x", "saved time: 3 s", "no checkpoint found, from scratch"])
def test_nothing_is_fetched_that_was_not_saved(said: str) -> None:
    assert len(steps(said)) == 1
