"""A run that goes on after a failure: the whole gang again, or with a spare in a lost host's place."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fleet
from tests.lab.healing import BreakableLab
from tests.lab.setup_ssh_tools import on_terminal
from tests.lab.test_launch import events, left_on, sha256, summary, until
from tests.lab.virtual_lab import VirtualLab

# counts as far as its first argument, or until it is enough, from where it has been, a step each 0.2 s; the second: in
# which attempts rank 1 dies half way
COUNT = """#!/bin/bash
RANK=$NODE_RANK WORLD_SIZE=$NNODES
seen=$HOME/work/count.$FLEET_RUN_ID.$RANK
n=$(cat "$seen" 2>/dev/null || echo 0)
echo "attempt $FLEET_ATTEMPT port $MASTER_PORT rank $RANK of $WORLD_SIZE from $n"
while [ "$n" -lt "$1" ] && [ ! -e "$HOME/work/enough" ]; do
    n=$((n + 1)); echo "$n" > "$seen.new"; mv "$seen.new" "$seen"; sleep 0.2
    if [ "$RANK" = 1 ] && [ "$FLEET_ATTEMPT" -lt "$2" ] && [ "$n" = $(($1 / 2 + FLEET_ATTEMPT)) ]; then
        echo "rank 1 dies of attempt $FLEET_ATTEMPT" >&2; exit 7
    fi
done
echo "ends at $n"
"""

# a fleet whose pause between two attempts nobody waits for to its end
SLOW = [
    sys.executable,
    "-c",
    "import fleet.node.gang.verdict as it; it.PAUSE_SECONDS = it.MAX_PAUSE_SECONDS = 600.0\n"
    "from fleet.cli.main import main; main()",
]


@pytest.fixture(scope="module")
def ready(breakable: BreakableLab) -> VirtualLab:
    lab = breakable.enrol()
    for host in lab.names:
        line = "cd && mkdir -p work && cat > work/count.sh && chmod +x work/count.sh"
        lab.inside(host, "sh", "-c", line, stdin=COUNT.encode())
    return lab


def begun(folder: Path) -> list[list[str]]:
    """The first line of each rank, by attempt."""
    (run,) = folder.glob("runs/*-*")
    folders = [*sorted(run.glob("attempt*")), run]
    return [[path.read_text().split("\n")[0] for path in sorted(each.glob("*/rank*.out"))] for each in folders]


def test_a_left_run_is_started_again_and_attach_sees_all_of_it(ready: VirtualLab, tmp_path: Path) -> None:
    """Rank 1 dies twice. The process that was left behind starts it again; who attaches ends neither."""
    words = ("-i", "lab", "-w", ",".join(ready.names[:2]))
    launched = ready.fleet(*words, "launch", "--detach", "--max-restarts", "3", "count.sh", "20", "2", cwd=tmp_path)
    assert launched.returncode == 0, launched.stderr
    other = tmp_path / "another head"
    other.mkdir()
    (run,) = tmp_path.glob("runs/*-*")
    elsewhere = ready.popen(*words, "attach", run.name, cwd=other)
    said = ready.fleet(*words, "attach", cwd=tmp_path, timeout=300)
    assert said.returncode == 0 and "Traceback" not in said.stderr, said.stderr
    out, err = (text.decode() for text in elsewhere.communicate(timeout=300))
    assert elsewhere.returncode == 0 and out.count("ends at 20") == 2, err
    done = summary(tmp_path)
    assert (done["exit_code"], done["attempt"], done["first_failure"]) == (0, 2, None)
    assert [(each["rank"], each["exit_code"]) for each in done["restarts"]] == [(1, 7)] * 2
    lines = begun(tmp_path)
    assert [[line.split()[1] for line in of] for of in lines] == [["0"] * 2, ["1"] * 2, ["2"] * 2]
    assert len({line.split()[3] for of in lines for line in of}) == 3, "each attempt meets at a port of its own"
    shown = ready.fleet(*words, "logs", "latest", "--since", "1h", cwd=tmp_path)
    assert shown.returncode == 0 and "dies of attempt" not in shown.stdout + shown.stderr, shown.stderr
    for place in ("", "attempt0/", "attempt1/"):
        log = f"{place}{ready.names[1]}/rank1.err"
        on_node = ready.sh(ready.names[1], f"sha256sum ~/.fleet/runs/{run.name}/{place}rank1.err | cut -d' ' -f1")
        assert sha256(run / log) == on_node, place
    assert (run / f"attempt1/{ready.names[1]}/rank1.err").read_text() == "rank 1 dies of attempt 1\n"
    found = json.loads(ready.fleet(*words, "ps", "--all", "--json", cwd=tmp_path, check=True).stdout)["runs"]
    assert [(each["state"], each["attempt"]) for each in found if each["run"] == run.name] == [("done", 2)]
    assert left_on(ready, tmp_path) == {}


@pytest.mark.slow
def test_fleet_is_upgraded_under_the_process_that_starts_a_run_again(ready: VirtualLab, tmp_path: Path) -> None:
    """Of what was installed when it began it loads nothing any more."""
    words, second = ("-i", "lab", "-w", ",".join(ready.names[:2])), ready.names[1]
    installed = tmp_path / "installed"
    shutil.copytree(Path(fleet.__file__).parent, installed / "fleet", ignore=shutil.ignore_patterns("__pycache__"))
    argv = (*words, "launch", "--detach", "--max-restarts", "3", "count.sh", "1000", "0")
    ready.fleet(*argv, cwd=tmp_path, env={"PYTHONPATH": str(installed)}, check=True)
    (run,) = tmp_path.glob("runs/*-*")
    for path in (installed / "fleet").rglob("*.py"):
        path.write_text("raise SystemExit('another fleet')\n")
    for folder in (installed / "fleet").rglob("__pycache__"):
        shutil.rmtree(folder)
    try:
        until(lambda: ready.sh(second, "pkill -x count.sh && echo killed", check=False))
        until(lambda: (run / "attempt0").is_dir() or (run / "summary.json").exists())
        until(lambda: list(run.glob("*/rank*.out")) or (run / "summary.json").exists())
        for host in ready.names[:2]:
            ready.sh(host, "touch ~/work/enough")
        until((run / "summary.json").exists)
    finally:
        for host in ready.names[:2]:
            ready.sh(host, "rm -f ~/work/enough")
    done, said = summary(tmp_path), (run / "leader.log").read_text()
    assert (done["exit_code"], done["attempt"], len(done["restarts"])) == (0, 1, 1), (done, said)
    assert said == ""
    until(lambda: left_on(ready, tmp_path) == {})


@pytest.mark.slow
def test_left_in_the_pause_it_goes_on_by_itself(ready: VirtualLab, tmp_path: Path) -> None:
    words = ("-i", "lab", "-w", ",".join(ready.names[:2]))
    slow = [word.replace("600.0", "12.0") for word in SLOW]  # the leader waits anew
    argv = [*slow, *words, "launch", "--max-restarts", "3", "count.sh", "10", "1"]
    status, screen = on_terminal(argv, ready.env, tmp_path, [("in 12 s", "d")], timeout=300)
    assert status == 0 and "goes on by itself" in screen, screen
    said = ready.fleet(*words, "attach", cwd=tmp_path, timeout=300)
    assert said.returncode == 0, said.stderr
    done = summary(tmp_path)
    assert (done["exit_code"], done["attempt"], [each["attempt"] for each in done["restarts"]]) == (0, 1, [1])
    assert left_on(ready, tmp_path) == {}


@pytest.mark.slow
def test_a_run_in_its_pause_is_known_and_stopped_at_once(ready: VirtualLab, tmp_path: Path) -> None:
    """By another head."""
    words = ("-i", "lab", "-w", ",".join(ready.names[:2]))
    argv = [*SLOW, *words, "launch", "--max-restarts", "3", "count.sh", "10", "1"]
    process = subprocess.Popen(argv, env=ready.env, cwd=tmp_path, stderr=subprocess.PIPE)
    other = tmp_path / "another head"
    other.mkdir()

    def states() -> list[str]:
        found = json.loads(ready.fleet(*words, "--json", "ps", cwd=other).stdout)["runs"]
        return [each["state"] for each in found if (tmp_path / "runs" / each["run"]).is_dir()]

    try:
        until(lambda: list(tmp_path.glob("runs/*-*")) and events(tmp_path, "restart"))
        until(lambda: states() == ["restarting"])
        (run,) = tmp_path.glob("runs/*-*")

        def attach() -> subprocess.Popen[bytes]:
            with (other / "said").open("wb") as said:
                attached = ready.popen(*words, "attach", run.name, cwd=other, stderr=said)
            until(lambda: f"run {run.name}: restarting" in " ".join((other / "said").read_text().split()))
            return attached

        left = attach()
        left.send_signal(signal.SIGINT)
        left.communicate(timeout=300)
        text = (other / "said").read_text()
        assert left.returncode == 0 and "goes on as before" in text, text
        assert not (other / "runs" / run.name / "summary.json").exists(), "nobody knows yet how it ends"
        attached = attach()
        assert ready.fleet(*words, "stop", "latest", cwd=other).returncode == 0
        attached.communicate(timeout=300)
        assert attached.returncode == 130, (other / "said").read_text()
        assert summary(other)["end"]["by"] == "stop" and summary(other)["stopped"].startswith("stopped by ")
    finally:
        try:
            err = process.communicate(timeout=300)[1].decode()
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 130 and states() == [], err
    assert summary(tmp_path)["end"] == summary(other)["end"]


def test_spares_take_the_place_of_unfit_and_lost_hosts(ready: VirtualLab, tmp_path: Path) -> None:
    first, second, third, fourth = ready.names
    ready.stop_sshd(first)
    try:
        words = ("-i", "lab", "launch", "--spares", "2", "--node-timeout", "10", "count.sh", "100000", "0")
        process = ready.popen(*words, cwd=tmp_path)
        until(lambda: len([path for path in tmp_path.glob("runs/*-*/*/rank*.out") if path.stat().st_size]) == 2)
        ready.fleet("lab", "freeze", second, check=True)
        until(lambda: len(list(tmp_path.glob(f"runs/*-*/{fourth}/rank*.out"))) == 1 or process.poll() is not None)
        for host in (third, fourth):
            ready.sh(host, "touch ~/work/enough")
        said = process.communicate(timeout=300)[1].decode()
        assert process.returncode == 0, said
    finally:
        ready.start_sshd(first)
        ready.fleet("lab", "heal", second, check=True)
        for host in (third, fourth):
            ready.sh(host, "rm -f ~/work/enough")
    assert "sync" not in said and "preflight: 3 hosts, " in said and "start: 2 hosts, " in said, said
    assert f"{first} is left out" in said and f"restart with {fourth} instead of {second}" in said
    done = summary(tmp_path)
    assert done["attempt"] == 1 and list(done["hosts"]) == [third, fourth]
    assert list(done["restarts"][0]["replaced"]) == [second]
    assert [event["host"] for event in events(tmp_path, "left-out")] == [first]
    before, after = begun(tmp_path)
    assert [line.split()[4:6] for line in before] == [["rank", "0"], ["rank", "1"]] and len(after) == 2
    moved = next(line for line in after if "rank 0 of 2" in line)
    assert int(moved.split()[-1]) == 0, "node ranks are the inventory's order, so the third host moved up"
    until(lambda: left_on(ready, tmp_path) == {})
    until(lambda: json.loads(ready.fleet("-i", "lab", "--json", "ps", check=True).stdout)["runs"] == [])


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_host_that_does_not_start(ready: VirtualLab, tmp_path: Path) -> None:
    """What preflight could not know; also of a run that is left to itself."""
    first, second, third, _ = ready.names
    (tmp_path / "short").mkdir()
    ready.sh(second, "mkdir -p ~/.fleet/runs && mount -t tmpfs -o nr_inodes=1 tmpfs ~/.fleet/runs")  # takes no folder
    try:
        words = ("-i", "lab", "-w", ",".join((first, second, third)))
        short = ready.fleet(*words, "launch", "count.sh", "2", "0", cwd=tmp_path / "short")
        assert short.returncode == 1 and "everything was stopped again" in short.stderr, short.stderr
        left = ready.fleet(*words, "launch", "--spares", "1", "--detach", "count.sh", "2", "0", cwd=tmp_path)
    finally:
        ready.sh(second, "umount ~/.fleet/runs")
    assert left.returncode == 0 and f"{second} is left out: cannot create the run's folder" in left.stderr, left.stderr
    assert "logs of the last one" not in left.stderr, left.stderr  # it has none
    said = ready.fleet(*words, "attach", cwd=tmp_path, timeout=300)
    assert said.returncode == 0, said.stderr
    done = summary(tmp_path)
    assert (done["exit_code"], done["attempt"], list(done["hosts"])) == (0, 1, [first, third])
    assert [event["host"] for event in events(tmp_path, "left-out")] == [second]
    assert [event["world_size"] for event in events(tmp_path, "running")] == [2]
    assert left_on(ready, tmp_path) == {}
