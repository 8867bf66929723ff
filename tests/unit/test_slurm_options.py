"""Each option of sbatch's, as its own --help has it, in all spellings: fleet has it, passes it on, or refuses it by
name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleet.cli.main import run
from fleet.engines.launchers import REFUSED_IN_JOBS
from fleet.engines.translate import options_of
from fleet.errors import UsageError
from fleet.requests.submit import Submit
from fleet.sources.slurm.script import OPTIONS, batch_script, environment, read_arguments, stated

HELP = Path(__file__).parents[1] / "golden" / "sbatch-22.05.txt"
ROW = re.compile(r"^ +(?:-(\w),? +)?--([\w-]+)(\[?)([= ]?)(\S?)", re.MULTILINE)
VALUE = {"nodes": "3", "nodelist": "n[1-3]", "ntasks-per-node": "4", "cpus-per-task": "2", "exclude": "n9"}


class Helped(NamedTuple):
    short: str
    name: str
    takes: str  # as translate.Known has it


def helped() -> Iterator[Helped]:
    seen = set[str]()
    for short, name, optional, equals, _ in ROW.findall(HELP.read_text().partition("Other options:")[0]):
        if name not in seen:
            seen.add(name)
            takes = "=" if equals == "=" or name == "container" else ""
            yield Helped(short, name, "=?" if optional and name != "export" else takes or "=" * (name == "export"))
    yield Helped("V", "version", "")


ALL = list(helped())


def test_the_table_is_sbatchs_own() -> None:
    assert len(ALL) >= 85
    table = options_of("sbatch")
    for it in ALL:
        known = table[it.name]
        optional = it.name in ("exclusive", "get-user-env")  # their values stand in another line of it
        assert optional or known.takes == it.takes, it
        assert not it.short or table[it.short].name == it.name, it


def spellings(it: Helped) -> Iterator[str]:
    value = VALUE.get(it.name, "2")
    names = [other for other in options_of("sbatch") if len(other) > 1]
    begun = [it.name[:end] for end in range(2, len(it.name) + 1)]
    whole = [name for name in begun if name == it.name or sum(other.startswith(name) for other in names) == 1]
    for name in whole:
        yield from [f"--{name}={value}", f"--{name} {value}"] if it.takes == "=" else [f"--{name}"]
    if it.short:
        yield from [f"-{it.short}{value}", f"-{it.short} {value}"] if it.takes == "=" else [f"-{it.short}"]


@pytest.mark.parametrize("it", ALL, ids=lambda it: it.name)
def test_an_option_in_all_spellings(it: Helped) -> None:
    value, own = VALUE.get(it.name, "2"), {option.name for option in OPTIONS} | {"exclude"}
    for word in spellings(it):
        if it.name in REFUSED_IN_JOBS:
            with pytest.raises(UsageError, match=re.escape(f"--sbatch-arg={word}: {REFUSED_IN_JOBS[it.name][0]}")):
                read_arguments([word])
            continue
        found, lines = read_arguments([word])
        if it.name in own - {"requeue"}:
            assert (found, lines) == ({it.name: value if it.takes == "=" else True}, []), word
        else:
            assert (found, lines) == ({}, [f"#SBATCH --{it.name}" + f"={value}" * (it.takes == "=")]), word


def script(**given: object) -> str:
    return batch_script(Submit(on="slurm", name="t", command=["fleet", "launch", "t.py"], **given))  # type: ignore[arg-type]


def test_what_fleet_has_of_its_own_is_translated() -> None:
    words = ("-N2", "--part gpu", "-c4", "--ntasks-per-node=2", "-wn[1-2]", "-x n3", "-Hk", "--exclusive=user", "-t5")
    options = stated(script(options={"sbatch_arg": words}, only="n4"))
    assert options["nodes"] == "2" and options["partition"] == "gpu" and options["time"] == "5"
    assert (options["cpus-per-task"], options["ntasks-per-node"]) == ("8", "1"), "one task, with the CPUs of all"
    assert (options["nodelist"], options["exclude"], options["exclusive"]) == ("n4,n[1-2]", "n3", "user")
    assert {"hold", "no-kill"} < options.keys()
    assert stated(script(only="n[1-4]"))["nodes"] == "4", "as many as it names"
    words = ("--of-a-later-slurm=a b", "--of-another a; b", "--comment=my run", "-b now + 1hour")
    later = script(options={"sbatch_arg": words}).splitlines()
    lines = ('--of-a-later-slurm="a b"', '--of-another "a; b"', '--comment="my run"', '--begin="now + 1hour"')
    assert {f"#SBATCH {line}" for line in lines} < set(later)


def test_what_the_environment_says_to_sbatch() -> None:
    """Sites have their users set these; what is typed wins, as on sbatch's own line."""
    given = {"SBATCH_PARTITION": "gpu", "SBATCH_TIMELIMIT": "10", "SLURM_CLUSTERS": "c2", "SLURM_NTASKS": "9"}
    text = script(options={"time": "5"}, environ=given)
    assert environment(text, given) == {"SBATCH_PARTITION": "gpu"}
    assert stated(text)["clusters"] == "c2", "the script alone says where the job is"
    assert stated(script(environ={**given, "SBATCH_CLUSTERS": "c1"}))["clusters"] == "c2", "as sbatch has it"
    assert stated(script(options={"sbatch_arg": ("-Mc3",)}, environ=given))["clusters"] == "c3"
    assert "# of the environment, sbatch is given SBATCH_PARTITION=gpu" in text, "the plan shows them"
    with pytest.raises(UsageError, match="^SBATCH_OVERCOMMIT is set, SBATCH_WAIT is set: fleet starts one") as wrong:
        script(environ={"SBATCH_WAIT": "1", "SBATCH_OVERCOMMIT": "1"})
    assert wrong.value.hint == "write env -u SBATCH_OVERCOMMIT -u SBATCH_WAIT before the line"


@pytest.mark.parametrize(
    "typed, variable",
    [
        ({"single_node_jobs": True, "nodes": "2"}, "SBATCH_REQUEUE"),
        ({"requeue": "3"}, "SBATCH_NO_REQUEUE"),
        ({"mem": "64G"}, "SBATCH_MEM_PER_CPU"),
        ({"sbatch_arg": ("--mem-per-gpu=4G",)}, "SBATCH_MEM_PER_NODE"),
        ({"gpus_per_node": "8"}, "SBATCH_GPUS"),
        ({"gres": "gpu:8"}, "SBATCH_GPUS_PER_NODE"),
        ({"sbatch_arg": ("-G8",)}, "SBATCH_GRES"),
        ({"exclusive": True}, "SBATCH_OVERSUBSCRIBE"),
        ({"sbatch_arg": ("-s",)}, "SBATCH_EXCLUSIVE"),
        ({"cpus_per_gpu": "4"}, "SBATCH_CPUS_PER_TASK"),
        ({"sbatch_arg": ("--cpu-freq=low",)}, "SBATCH_CPU_FREQ_REQ"),
    ],
)
def test_the_environment_replaces_nothing_that_is_stated(typed: dict[str, Any], variable: str) -> None:
    assert environment(script(options=typed), {variable: "gpu:4"}) == {}
    assert environment(script(), {variable: "gpu:4"}) == {variable: "gpu:4"}
    assert environment(script(options={"gres": "lustre:1"}), {"SBATCH_GPUS": "4"}) == {"SBATCH_GPUS": "4"}


def test_no_secret_stands_in_the_script() -> None:
    text = script(environ={"SBATCH_EXPORT": "ALL,WANDB_API_KEY=tiger,LR=3"})
    assert "tiger" not in text and "SBATCH_EXPORT=ALL,WANDB_API_KEY=***,LR=3" in text
    for word in ("--export=ALL,WANDB_API_KEY=tiger", "--exp HF_TOKEN=tiger", "--of-a-later-slurm=PASSWORD=tiger"):
        with pytest.raises(UsageError, match="a script must not hold a secret") as wrong:
            script(options={"sbatch_arg": (word,)})
        assert "tiger" not in wrong.value.message and "--env-file" in str(wrong.value.hint)
    assert stated(script(options={"sbatch_arg": ("--export=ALL,WANDB_API_KEY,LR=3",)}))["export"]


def test_setup_and_requeue() -> None:
    lines = script(options={"setup": ("module load cuda; . env/bin/activate",), "requeue": "3"}, run="t-1").splitlines()
    assert lines[-4:-2] == ["export FLEET_REQUEUES=3", "module load cuda; . env/bin/activate"]
    assert lines[-1].startswith("FLEET_CLAIMS=t-1 exec ")
    assert {"#SBATCH --requeue", "#SBATCH --signal=TERM@90"} < set(lines), "ranks are told in time"
    with pytest.raises(UsageError, match="--requeue is for one job"):
        script(options={"requeue": "3", "single_node_jobs": True})


def test_what_a_site_always_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A section of the inventory's file, which needs no hosts for that; what is typed wins."""
    monkeypatch.chdir(tmp_path)
    for name in [it for it in os.environ if it.startswith(("SLURM", "SBATCH", "FLEET_INV"))]:
        monkeypatch.delenv(name)
    section = (
        "slurm:\n  partition: gpu1\n  time: 20:00:00\n  setup: module load cuda\n  mail-type: END\n  exclusive: yes\n"
    )
    (tmp_path / "fleet.yaml").write_text(section)
    assert run(["--dry-run", "launch", "--on", "slurm", "-N2", "--partition", "gpu2", "--nice=3", "t.py"]) == 0
    text = capsys.readouterr().out
    options = stated(text)
    assert (options["partition"], options["time"], options["nodes"]) == ("gpu2", "20:00:00", "2")
    assert (options["mail-type"], options["exclusive"], options["nice"]) == ("END", "", "3")
    assert "\nmodule load cuda\n" in text
    for wrong in ("slurm: gpu1\n", "slurm: {partition: {a: b}}\n", "slurm: {array: 0-3}\n", "slurm: {partitoin: x}\n"):
        (tmp_path / "fleet.yaml").write_text(wrong)
        assert run(["--dry-run", "launch", "--on", "slurm", "t.py"]) in (2, 121)
        assert "Traceback" not in capsys.readouterr().err
