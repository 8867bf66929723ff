"""`fleet check` over real sshd: facts of each host, one that deviates, one whose driver hangs, one that is down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.virtual_lab import VirtualLab
from tests.node.nodes import until


def document(lab: VirtualLab, *args: str, code: int = 0) -> dict[str, Any]:
    done = lab.fleet("check", "--json", *args)
    assert done.returncode == code, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["exit_code"] == code
    return said


def found(said: dict[str, Any]) -> dict[str, list[str]]:
    return {finding["id"]: finding["hosts"] for finding in said["findings"]}


def test_equal_hosts_fold_into_one_column(ready_lab: VirtualLab) -> None:
    done = ready_lab.fleet("-i", "lab", "check")
    assert done.returncode == 0, done.stderr
    (title,) = (line for line in done.stdout.splitlines() if line.startswith("fact"))
    assert title.rstrip().endswith("(3)") and "3 hosts compared" in done.stdout


def test_facts_are_each_hosts_own(ready_lab: VirtualLab) -> None:
    said = document(ready_lab, "-i", "lab")
    for name, host in said["hosts"].items():
        facts = host["facts"]
        assert facts["timed_out"] == [] and facts["failed"] == {}
        assert facts["hostname"] == name
        toward = next(i for i in facts["interfaces"] if i["name"] == facts["head_interface"])
        assert ready_lab.address(name) in [address.split("/")[0] for address in toward["addresses"]]
        assert abs(facts["clock"]["offset"]) <= facts["clock"]["uncertainty"] + 0.001, "all hosts have this clock"
        assert facts["clock"]["uncertainty"] < 30


@pytest.fixture
def odd_inventory(ready_lab: VirtualLab, tmp_path: Path) -> Path:
    """The lab, with another interpreter on its second host."""
    lines = ready_lab.inventory.read_text().splitlines()
    second = ready_lab.names[1]
    path = tmp_path / "odd.yaml"
    path.write_text(
        "\n".join(
            line.replace("{address", "{python: /no/such/python, address")
            if line.strip().startswith(f"{second}:")
            else line
            for line in lines
        )
        + "\n"
    )
    return path


def test_an_interpreter_that_is_not_there(ready_lab: VirtualLab, odd_inventory: Path) -> None:
    said = document(ready_lab, "-i", str(odd_inventory), code=123)
    errors = [f for f in said["findings"] if f["severity"] == "error"]
    assert [(f["id"], f["hosts"]) for f in errors] == [("python-missing", [ready_lab.names[1]])]
    assert "/no/such/python" in errors[0]["message"] and errors[0]["remedy"]
    screen = ready_lab.fleet("-i", str(odd_inventory), "check")
    assert screen.returncode == 123 and "* missing" in screen.stdout and "[python-missing]" in screen.stdout


@pytest.mark.slow
def test_a_host_whose_python_has_no_torch_is_refused_by_both(ready_lab: VirtualLab, tmp_path: Path) -> None:
    name, bare = ready_lab.names[1], "/opt/bare/bin/python"
    ready_lab.sh(name, "python3 -m venv --without-pip /opt/bare")
    inventory = tmp_path / "bare.yaml"
    text = ready_lab.inventory.read_text().replace(f"{name}: {{address", f"{name}: {{python: {bare}, address")
    inventory.write_text(text)
    says = f"{name}: needed for a run: torch is not installed for {bare}"
    (error,) = (f for f in document(ready_lab, "-i", str(inventory), code=123)["findings"] if f["severity"] == "error")
    assert (error["id"], error["hosts"], error["message"]) == ("module-missing", [name], says)
    assert document(ready_lab, "-i", str(inventory), "--engine", "command")["ok"]
    (tmp_path / "t.py").touch()
    done = ready_lab.fleet(
        "-i", str(inventory), "launch", "--sync", "--workdir", "~/bare", "--json", "t.py", cwd=tmp_path
    )
    told = [line for line in map(json.loads, done.stdout.splitlines()) if line["event"] == "finding"]
    assert done.returncode == 123 and [f["message"] for f in told] == [says]
    event = {**told[0], "remedy": error["remedy"]}
    assert {"event": "finding", **error, "hint": error["remedy"]}.items() <= event.items()


@pytest.fixture
def wedged(ready_lab: VirtualLab) -> Iterator[str]:
    """The third host has an nvidia-smi that never answers and no signal but SIGKILL ends."""
    name = ready_lab.names[2]
    text = "#!/bin/sh\necho $$ >> /run/smi.pids\ntrap '' TERM INT HUP PIPE\nwhile :; do read x < /run/smi.fifo; done\n"
    install = "mkfifo /run/smi.fifo; cat > /usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi"
    ready_lab.inside(name, "sh", "-c", install, stdin=text.encode())
    yield name
    ready_lab.sh(name, "rm -f /usr/local/bin/nvidia-smi /run/smi.fifo /run/smi.pids")


def test_a_driver_that_hangs_costs_nobody_else_anything(ready_lab: VirtualLab, wedged: str) -> None:
    said = document(ready_lab, "-i", "lab", "--timeout", "4", code=123)
    assert said["hosts"][wedged]["facts"]["timed_out"] == ["gpus", "gpu processes", "gpu health", "nvlinks"]
    assert found(said)["hangs-gpus"] == [wedged]
    assert all(not host["facts"]["timed_out"] for name, host in said["hosts"].items() if name != wedged)
    assert said["hosts"][wedged]["facts"]["python"]["version"]
    pids = ready_lab.sh(wedged, "cat /run/smi.pids").split()
    assert len(pids) == 4
    left = "for p in $(cat /run/smi.pids); do [ -e /proc/$p ] && echo $p; done"
    until(lambda: ready_lab.sh(wedged, left, check=False) == "")  # what hung is killed with the probe


def test_a_host_that_is_down_is_122_and_the_others_are_compared(ready_lab: VirtualLab) -> None:
    down = ready_lab.names[2]
    ready_lab.stop_sshd(down)
    try:
        said = document(ready_lab, "-i", "lab", code=122)
        screen = ready_lab.fleet("-i", "lab", "check")
    finally:
        ready_lab.start_sshd(down)
    assert said["hosts"][down]["error"]["kind"] == "refused" and "facts" not in said["hosts"][down]
    assert all(said["hosts"][name]["facts"]["kernel"] for name in ready_lab.names[:2])
    assert f"not compared: {down}" in screen.stdout and "2 hosts compared" in screen.stdout
    assert down in screen.stderr and screen.returncode == 122
