"""Which run a word means: of the runs that have a folder here, and of those that nodes report."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.ops.run.kept.local import choose, is_part_of_name
from tests.in_process import Outcome, command_line
from tests.run_folders import an_id, run_folder
from tests.scripted import STOPPED, Scripted, Spec, about, lists, part

IDS = [
    "train-20261122-120000-ab12",
    "train-20261121-120000-cd34",
    "train-big-20261120-120000-ef56",
    "odd-20261119-120000-0a1b",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("h\n")
    return tmp_path


@pytest.mark.parametrize(
    "word, meant",
    [
        ("latest", IDS[0]),
        ("train", IDS[0]),
        ("train-big", IDS[2]),
        ("train-b", IDS[2]),
        ("train-20261121", IDS[1]),
        ("o", IDS[3]),
        (IDS[1], IDS[1]),
    ],
)
def test_a_word_means_a_run(word: str, meant: str) -> None:
    assert choose(word, IDS) == meant


@pytest.mark.parametrize(
    "word, runs, said",
    [
        ("train-2026", IDS, "2 runs begin so: train-20261122-120000-ab12, train-20261121-120000-cd34"),
        ("eval", IDS, "no run eval: known are train-20261122-120000-ab12, .*, odd-20261119-120000-0a1b"),
        ("latest", [], "no run latest: none was launched from this folder"),
        ("", IDS[:1], "RUN is empty"),
    ],
)
def test_what_means_none_or_many_is_said(word: str, runs: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choose(word, runs)


@pytest.mark.parametrize(
    "word, part",
    [("tr", True), ("train", False), ("train-2026", False), ("latest", False), (IDS[0], False), ("train-b", False)],
)
def test_the_first_letters_of_a_name_may_mean_something_else(word: str, part: bool) -> None:
    assert is_part_of_name(word, IDS[0]) is part


def reported(run: str, state: str, started: float) -> Spec:
    return part(run, state, about=about(started))


def stop(word: str, *runs: Spec, silent: str = "") -> Outcome:
    """fleet stop WORD, on a host that reports these runs; silent: hosts that refuse connections."""
    Path("hostfile").write_text("\n".join(["h", *silent.split()]) + "\n")
    return command_line(["--json", "stop", word], Scripted({"h": {"list_runs": lists(*runs), "stop": [STOPPED]}}))


def meant(word: str, *runs: Spec) -> str:
    found = stop(word, *runs).document()
    return str(found.get("run", found.get("error")))


def test_latest_is_what_was_launched_last_from_this_folder_live_or_not() -> None:
    """A live one that is older, or another head's, is not stopped in its place."""
    none = stop("latest", reported(IDS[1], "running", 1.0)).document()["error"]
    assert "latest: no run that has a folder in runs" in none["message"] and IDS[1] in none["hint"]
    for number, run in enumerate(IDS[:3]):
        run_folder(Path("runs"), run, plan={"started": 9.0 - number})
    runs = [reported(IDS[0], "exited", 3.0), reported(IDS[1], "running", 1.0), reported(IDS[3], "running", 9.0)]
    for word, run in (("latest", IDS[0]), ("train", IDS[0]), ("train-20261121", IDS[1])):
        assert meant(word, *runs) == run
    for verb in ("stacks", "attach"):
        said = command_line([verb, "latest"], Scripted({"h": {"list_runs": lists(*runs[1:])}})).err
        assert f"no host knows of run {IDS[0]}" in said, (verb, said)


def test_a_run_that_was_launched_here_is_meant_before_what_a_node_reports() -> None:
    """A node may report a run that never was, and that began in a hundred years."""
    for number in (1, 2):
        run_folder(Path("runs"), IDS[number], plan={})
    Path("runs/latest").symlink_to(IDS[2])
    run_folder(Path("runs"), IDS[0])  # attached to, as the last one
    run_folder(Path("runs"), IDS[3])
    runs = [reported(IDS[0], "running", 5e9), reported(IDS[1], "running", 2.0), reported(IDS[2], "running", 1.0)]
    assert meant("latest", *runs) == IDS[2], "the last that began, by whatever clock"
    assert meant("train", *runs) == IDS[1] and meant(IDS[0], *runs) == IDS[0]


def test_a_run_that_silent_hosts_may_know_is_no_typing_error() -> None:
    done = stop("x", silent="n2")
    assert done.code == 122 and "no run x" in done.out and "no answer from n2" in done.out and "is it up?" in done.out
    assert stop("x").code == 2


def test_stop_waits_for_no_host_that_is_no_part_of_the_run() -> None:
    """One that hangs is not even asked."""
    run_folder(Path("runs"), IDS[0], plan={"hosts": {"h": {}}, "restarts": [{"hosts": ["h3"]}]})
    Path("hostfile").write_text("h\nn2\nh3\n")
    there = {"list_runs": lists(part(IDS[0], about=about())), "stop": [STOPPED]}
    asked = Scripted(dict.fromkeys(("h", "n2", "h3"), there))
    assert command_line(["stop", "latest"], asked).code == 0
    assert {host for host, _, _ in asked.sent} == {"h", "h3"}


def shown(word: str) -> str:
    """What fleet logs WORD shows, of runs whose logs hold their ids."""
    return command_line(["logs", word], Scripted({"h": {"list_runs": lists()}})).out


def folder(number: int, **summary: object) -> Path:
    run = an_id(f"r{number}")
    whole = {"exit_code": 123, "incomplete_logs": [], **summary}
    return run_folder(Path("runs"), run, plan={"started": float(number)}, summary=whole, logs={"h/rank0.out": run})


def test_a_run_that_never_began_is_not_the_latest() -> None:
    """As one that was refused in its start: it has no output."""
    for number, error in enumerate([{}, {}, {"error": {"kind": "preflight"}}]):
        folder(number, **error)
    assert shown("latest") == f"[h:0] {an_id('r1')}\n"
    listed = command_line(["--json", "runs"], None).document()["runs"]
    assert [run["run"] for run in listed] == [an_id("r2"), an_id("r1"), an_id("r0")], "they are listed by their time"
