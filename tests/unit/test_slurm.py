"""Hosts of a Slurm allocation, and of a cluster: commands, and programs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import fleet as fleets
from fleet.cli.main import run
from fleet.errors import HostFailed, UsageError
from tests import stubs
from tests.slurm_answers import JOB, NODES

ENV = {"SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "zz[01-03]", "SLURM_TASKS_PER_NODE": "8(x2),4"}


def test_where_no_inventory_is_the_allocation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("SLURM", "FLEET"))]:
        monkeypatch.delenv(name)
    assert run(["exec", "--", "true"]) == 121
    assert "this is" not in capsys.readouterr().err
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    assert run(["exec", "--", "true"]) == 121
    said = capsys.readouterr().err
    assert "no inventory found; this is job 4 of Slurm" in said and "give --on slurm to take its hosts" in said


@pytest.mark.parametrize(
    "words", [["launch", "--on", "slurm"], ["--on", "slurm", "launch"], ["--on", "slurm", "hosts"]]
)
def test_a_heterogeneous_allocation_of_salloc_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """There it has no list of nodes, but of each part; no new job is submitted for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text("")
    stubs.put(tmp_path, {"sbatch": "touch submitted; echo 17", "scontrol": "", "srun": ""}, monkeypatch)
    given = {"SLURM_JOB_ID": "4", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "n1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert run([*words, *["t.py"] * ("launch" in words)]) == 2
    assert "job 4 is a heterogeneous one, of 2 parts" in capfd.readouterr().err
    assert not (tmp_path / "submitted").exists()


def test_by_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """scontrol is asked without a shell, and need not be there."""
    scontrol = f"case $2 in job) cat <<'END'\n{JOB}END\n;; node) cat <<'END'\n{NODES}END\nesac"
    stubs.put(tmp_path, {"scontrol": scontrol}, monkeypatch)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    gpus = fleets.open(on="slurm")
    assert (gpus.names, gpus.transport, gpus.inventory.source) == (("zz01", "zz02", "zz03"), "srun", "slurm:4")
    assert gpus.inventory.hosts[2].slots == 4
    (tmp_path / "scontrol").unlink()
    assert fleets.open(on="slurm").inventory.hosts[2].slots == 4, "its tasks"
    with pytest.raises(UsageError, match="takes no inventory"):
        fleets.open("x.yaml", on="slurm")
    with pytest.raises(UsageError, match="no source 'moon'"):
        fleets.open(on="moon")


SINFO = """\
n01|10.0.0.1|gpu:a100:8(S:0-1)|idle|none
n02|n02|gpu:a100:4,gpu:t4:2|drained*|ECC errors | see #7
n03|n03|(null)|mixed|none
n01|10.0.0.1|gpu:a100:8(S:0-1)|idle|none
"""


def test_hosts_from_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    sinfo = f"case $* in *partition=none*) ;; *%R*) echo gpu1;; *) cat <<'END'\n{SINFO}END\nesac"
    stubs.put(tmp_path, {"sinfo": sinfo}, monkeypatch)
    assert run(["hosts", "--from", "slurm"]) == 0
    shown = capfd.readouterr().out
    assert re.search(r"n02 +\S* *6 +drained\* +ECC errors \| see #7", shown), shown
    assert run(["hosts", "--from", "slurm", "gpu1", "-x", "n03", "--format", "slurm"]) == 0
    lines = ["NodeName=n01 NodeAddr=10.0.0.1 Gres=gpu:8 State=UNKNOWN", "NodeName=n02 Gres=gpu:6 State=UNKNOWN"]
    assert capfd.readouterr().out.splitlines() == lines
    assert run(["--json", "hosts", "--from", "slurm"]) == 0
    hosts = json.loads(capfd.readouterr().out)["hosts"]
    assert [(name, host["address"], host["slots"]) for name, host in hosts.items()] == [
        ("n01", "10.0.0.1", 8),
        ("n02", "n02", 6),
        ("n03", "n03", None),
    ]
    assert (hosts["n02"]["state"], hosts["n02"]["reason"]) == ("drained*", "ECC errors | see #7")
    assert hosts["n01"]["state"] == "idle"
    assert run(["hosts", "--from", "slurm", "none"]) == 2
    assert "partitions there are: gpu1" in capfd.readouterr().err


@pytest.mark.parametrize(
    "line", ["n3;id|10.0.0.3|", "n3|-oProxyCommand=id|", "-n3|10.0.0.3|", "n3/../x|10.0.0.3|", "n3|a b|"]
)
@pytest.mark.parametrize("form", ["slurm", "pdsh", "ssh-config", "names"])
def test_a_name_or_address_that_is_none_is_written_by_no_format(
    line: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stubs.put(tmp_path, {"sinfo": f"echo '{line}(null)|idle|none'"}, monkeypatch)
    assert run(["hosts", "--from", "slurm", "--format", form]) == 1
    out, err = capfd.readouterr()
    assert not out and "Slurm names a node so" in err and "scontrol show node" in err, err


@pytest.mark.parametrize("told", ["NodeName=zz01 NodeAddr=-oProxyCommand=id", "NodeName=zz01 NodeAddr=a;id"])
def test_an_address_of_an_allocation_is_checked_too(told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubs.put(tmp_path, {"scontrol": f"case $2 in node) echo '{told}';; esac"}, monkeypatch)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HostFailed, match="Slurm names a node so"):
        fleets.open(on="slurm")
