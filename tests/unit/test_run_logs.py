"""`fleet logs`, of runs whose logs are here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fleet
from fleet.cli.main import run
from fleet.events import Event, Output
from tests.run_folders import run_folder

RUN = "t-20261122-101500-0001"
WHOLE = {"incomplete_logs": []}
LONG = "x" * (3 << 20) + "\nend\n"


@pytest.mark.parametrize("text", ["", "one", "one\n", "one\ntwo", "one\ntwo\nthree\n", "\n\n\n", LONG])
@pytest.mark.parametrize("lines", [0, 1, 2, 5])
def test_the_last_lines_of_a_log(tmp_path: Path, text: str, lines: int) -> None:
    shown: list[Event] = []
    (tmp_path / "hostfile").write_text("h\n")
    run_folder(tmp_path / "runs", RUN, summary=WHOLE, logs={"h/rank0.out": text})
    fleet.open(tmp_path / "hostfile", transport="local", emit=shown.append).logs(
        RUN, runs_dir=tmp_path / "runs", tail=lines
    )
    last = text.splitlines(True)[-lines:] if lines else []
    assert b"".join(each.data for each in shown if isinstance(each, Output)) == "".join(last).encode()


def test_a_whole_runs_logs_are_shown_without_an_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    logs = {f"{host}/rank0.out": f"of {host}\n" for host in ("gpu1", "gpu2")}
    folder = run_folder(Path("runs"), RUN, plan={"engine": "torchrun"}, summary=WHOLE, events=["running"], logs=logs)
    both, nothing = "[gpu1:0] of gpu1\n[gpu2:0] of gpu2\n", "no inventory found; looked for: -i"
    for words, code, out, err in (
        (["logs", "t"], 0, both, ""),
        (["logs", "-f", folder.name], 0, both, ""),
        (["logs", "t", "--host", "gpu2"], 0, "[gpu2:0] of gpu2\n", ""),
        (["logs", "t", "-x", "gpu2"], 0, "[gpu1:0] of gpu1\n", ""),
        (["logs", "t", "--host", "gpu3"], 121, "", "no host 'gpu3' in the inventory"),
        (["logs", "t", "--dry-run"], 0, "shows the logs of run t\n", ""),
        (["-i", "nowhere", "logs", "t"], 121, "", "no inventory 'nowhere' (named by -i)"),
        (["logs", "t", "--since", "5m"], 121, "", nothing),
        (["logs", "-f", "t"], 0, both, ""),
        (["logs", "u"], 121, "", nothing),
    ):
        got, told = run(words), capfd.readouterr()
        assert (got, told.out) == (code, out) and (err in told.err if err else not told.err), (words, told)


@pytest.mark.parametrize("summary", [None, '{"incomplete_logs": ["gpu2"]}', "[", "{}"])
def test_logs_of_which_some_are_not_here_are_asked_for(
    summary: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    folder = run_folder(Path("runs"), RUN, logs={"gpu1/rank0.out": "x\n"})
    if summary is not None:
        (folder / "summary.json").write_text(summary)
    assert run(["logs", "t"]) == 121, "without an inventory, nobody can be asked"
    (folder / "summary.json").write_text(json.dumps(WHOLE))
    assert run(["logs", "t"]) == 0


def test_the_logs_of_an_earlier_attempt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    places = {0: "attempt0/gpu1", 1: "attempt1/gpu1", 2: "gpu1"}
    logs = {f"{place}/rank0.out": f"of attempt {number}\n" for number, place in places.items()}
    runs = tmp_path / "runs"
    (run_folder(runs, RUN, summary=WHOLE, logs=logs) / ".attempt").write_text("2")
    (tmp_path / "h").write_text("gpu1\n")
    words = ["-i", str(tmp_path / "h"), "logs", "t", "--runs-dir", str(runs)]
    for more, code, said in (
        ([], 0, "of attempt 2"),
        (["--attempt", "0"], 0, "of attempt 0"),
        (["--attempt", "2"], 0, "of attempt 2"),
        (["--attempt", "3"], 2, "has no logs of an attempt 3 here\n  hint: its last attempt is 2, its first one 0"),
        (["-f", "--attempt", "0"], 2, "--attempt goes with neither --follow nor --since"),
    ):
        assert run([*words, *more]) == code
        assert said in "".join(capfd.readouterr())


def test_logs_of_a_rank_that_is_none_and_of_chosen_hosts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = {f"gpu{rank + 1}/rank{rank}.out": f"of rank {rank}\n" for rank in range(2)}
    run_folder(tmp_path / "runs", RUN, plan={"world_size": 3}, summary=WHOLE, logs=logs)
    (tmp_path / "h").write_text("gpu1\ngpu2\n")

    def said(*more: str, code: int = 0) -> tuple[str, str]:
        words = ["-i", str(tmp_path / "h"), "logs", RUN, "--runs-dir", str(tmp_path / "runs")]
        assert run([*words, *more]) == code
        return capfd.readouterr()

    assert said() == ("[gpu1:0] of rank 0\n[gpu2:1] of rank 1\n", "")
    assert said("-w", "gpu2") == said("-x", "gpu1") == said("--host", "gpu2") == ("[gpu2:1] of rank 1\n", "")
    none = f"warning: run {RUN}: no log of rank 2 is here, but of ranks 0-1\n"
    assert said("--rank", "2") == ("", none)
    assert said("--rank", "1,2") == ("[gpu2:1] of rank 1\n", none)
    of_host = none.replace("rank 2", "rank 1").replace("ranks 0-1", "rank 0")
    assert said("--rank", "1", "--host", "gpu1") == ("", of_host)
    for ranks in ("9", "1,9"):
        no_such = ("", f"error: run {RUN} has no rank 9\n  hint: it has ranks 0-2\n")
        assert said("--rank", ranks, code=2) == said("-f", "--rank", ranks, code=2) == no_such
    assert said("--rank", "1") == ("of rank 1\n", "")
