"""`fleet report`: one page of what a run's folder holds, whoever wrote it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.cli.screen.pages import HEIGHT, WIDTH
from fleet.node.container.record import Kept
from fleet.ops.run.kept.documents import restarts_of
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.metrics import POINTS, read_metrics
from tests.in_process import Outcome, command_line
from tests.meetings import RUN, about, nobodys_summary
from tests.run_folders import run_folder
from tests.scripted import Scripted, ends, well

ID = "train-20260101-000000-0000"
START = 1_790_000_000.0
EVIL = "</title><script>alert(1)</script>\x1b[31m\" onload='x'"
PLAN = {
    "run": ID,
    "engine": "torchrun",
    "owner": "ada@head",
    "started": START,
    "hosts": {"a": {"node_rank": 0, "ranks": [0, 1]}, "b": {"node_rank": 1, "ranks": [2, 3]}},
    "fleet": {"version": "0.1.0", "argv": ["fleet", "launch", "--env", "TOKEN=***", "train.py"]},
    "code": {"commit": "c0ffee" * 6, "branch": "main", "dirty": 2, "diff": "code.diff"},
    "facts": {"a": {"python": {"version": "3.11.7"}}},
}
FAILURE = {
    "host": "b",
    "node_rank": 1,
    "rank": 3,
    "exit_code": 1,
    "message": "rank 3 on b failed: exit code 1",
    "why": f"ValueError: {EVIL}",
    "traceback": f"Traceback (most recent call last):\n  here\nValueError: {EVIL}",
    "hint": "a smaller batch",
    "log": f"runs/{ID}/b/rank3.err",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def happened() -> list[dict[str, Any]]:
    """Returns the events of a run whose second attempt failed, and of which one rank's end is not known."""

    def over(at: float, rank: int, status: int | None, signal: int | None, attempt: int) -> dict[str, Any]:
        how = {"status": status, "signal": signal, "attempt": attempt, "local_rank": rank % 2, "node_rank": rank // 2}
        of = {"level": "error", "host": "ab"[rank // 2], "message": f"rank {rank} ended"}
        return {"event": "rank", "time": START + at, "rank": rank, **of, **how}

    begun = {"level": "info", "host": None, "message": "", "world_size": 4, "first_ranks": {"a": 0, "b": 2}}
    restart = {"attempt": 1, "restart": 1, "max_restarts": 2, "rank": 1, "exit_code": 1, "signal": None, "what": "rank"}
    return [
        {"event": "version", "time": START, "version": 1, "fleet": "0.1.0"},
        {"event": "running", "time": START + 4, "logs": "x", **begun},
        over(100, 1, 1, None, 0),
        *(over(101, rank, None, 15, 0) for rank in (0, 2, 3)),
        {
            "event": "restart",
            "time": START + 102,
            "level": "warning",
            "host": "a",
            "message": "restart 1 of 2",
            **restart,
            "replaced": {},
            "seconds": 96.0,
            "log": "x",
        },
        {"event": "attempt", "time": START + 110, "attempt": 1, "master": "h:1", **begun},
        {
            "event": "advice",
            "time": START + 150,
            "level": "warning",
            "host": "b",
            "message": f"b: GPU 5 is slow {EVIL}",
            "id": "x",
            "remedy": "y",
        },
        over(200, 3, 1, None, 1),
        *(over(201, rank, 0, None, 1) for rank in (0, 1)),
        {"event": "summary", "time": START + 204, "exit_code": 1, "first_failure": None},
    ]


def sample(at: float, **more: Any) -> dict[str, Any]:
    rest = {"uuid": None, "power_limit": None, "memory_total": None, "clock": None, "throttle": None, "runs": []}
    gpu = {**rest, "power": 300.0, "temperature": 60, "memory": 1, "others": 0}
    gpus = [{**gpu, "index": number, "use": use} for number, use in enumerate((80, 100))]
    net = {"eth0": [1e6, 2e6], "eth1": [None, None]}
    host = {"cpu": 20.0, "load": 1.0, "memory": 1 << 30, "memory_total": 1 << 35}
    return {"time": START + at, **host, "net": net, "ib": {}, "gpus": gpus, **more}


def measured(folder: Path, where: str, lines: Sequence[Mapping[str, Any] | str]) -> None:
    (folder / where).mkdir(0o700, parents=True, exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / where / "metrics.jsonl").write_text(text[:-1])


def a_run(**more: Any) -> Path:
    hosts = {name: {"ok": name == "a", "exit_status": 1, "stdout": "", "stderr": "", "error": None} for name in "ab"}
    summary = {
        "exit_code": 1,
        "hosts": hosts,
        "run": ID,
        "first_failure": FAILURE,
        "end": None,
        "next": [],
        "seconds": 9,
    }
    given = {"plan": PLAN, "summary": summary, "events": happened(), **more}
    return run_folder(Path("runs"), ID, **given)


def report(*words: str) -> Outcome:
    return command_line(["report", *words], None)


class Page(HTMLParser):
    """A page as a browser reads it: its elements, and that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found, self.open, self.text = list[tuple[str, dict[str, str | None]]](), list[str](), ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


def is_alone(text: str) -> Page:
    """Returns the page, which loads and runs nothing."""
    page = Page(text)
    tags = {tag for tag, _ in page.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "a", "use", "image", "foreignobject"}, tags
    names = {name for _, attrs in page.found for name in attrs}
    assert not {name for name in names if name.startswith("on") or name in ("href", "src", "xlink:href")}, names
    assert "url(" not in text and "@import" not in text and "\x1b" not in text
    (policy,) = [each for each in page.of("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert (policy["content"] or "").startswith("default-src 'none'")
    return page


def test_the_page_has_all_of_a_run_and_text_of_nodes_is_text() -> None:
    folder = a_run()
    measured(folder, "a", [sample(at) for at in range(110, 200, 10)])
    measured(folder, "attempt0/a", [sample(at) for at in range(10, 100, 10)])
    done = report("latest", "--html", "page.html")
    assert done.code == 0, done.err
    page = is_alone(Path("page.html").read_text())
    for text in ("train.py", "commit c0ffeec0ffee of branch main", "torchrun, 4 ranks on 2 hosts", "a[b]", "TOKEN=***"):
        assert text in page.text or text == "a[b]", text
    for text in (
        "rank 3 on b failed: exit code 1",
        "a smaller batch",
        "restart 1 of 2",
        "GPU 5 is slow",
        "python 3.11.7",
    ):
        assert text in page.text, text
    assert page.text.count("</title><script>alert(1)</script>") >= 3, "it is there, as text"
    bars = [attrs for attrs in page.of("rect") if "%" in (attrs.get("x") or "")]
    kinds = sorted(str(attrs["class"]) for attrs in bars)
    assert kinds == ["done", "done", "failed", "failed first", "killed", "killed", "killed", "open"]
    assert len([attrs for attrs in page.of("path") if attrs["class"] == "gpu"]) == 1, "attempts are one line"


def test_the_text_has_the_same() -> None:
    folder = a_run()
    measured(folder, "b", [sample(at) for at in range(110, 200, 10)])
    done = report("train")
    said = " ".join((done.out + done.err).split())
    assert done.code == 0 and f"run {ID}: failed, exit code 1, 3.4 min" in said, said
    assert "attempt 0: 97 s, failed: rank 1; ended by a signal: ranks 0,2-3" in said, said
    assert "attempt 1: 94 s, failed: rank 3; no end known: rank 2" in said, said
    assert "90 % 600 W 60 °C 20 % 1.0 GiB" in said and "failed: rank 3 on b failed: exit code 1" in said, said
    assert '\x1b[31m"' not in done.out and "GPU 5 is slow" in said


def test_json_has_the_means_and_the_attempts() -> None:
    folder = a_run()
    measured(folder, "a", [sample(120), sample(130, cpu=None, gpus=[]), sample(9e6), '{"time": 17'])
    found = report("--json", ID).document()
    assert found["metrics"]["a"] == {
        "time": START + 125,
        "cpu": 20.0,
        "use": 90.0,
        "power": 600.0,
        "received": 1e6,
        "sent": 2e6,
        "memory": 1 << 30,
        "temperature": 60,
        "highest": 100,
        "lowest": 80,
    }
    assert found["odd_samples"] == 1 and found["ranks"] == {"a": [0, 1], "b": [2, 3]}
    assert [(it["attempt"], it["began"] - START, it["ended"] - START) for it in found["attempts"]] == [
        (0, 4.0, 101.0),
        (1, 110.0, 204.0),
    ]
    assert fleet.report(ID).data["run"] == ID


def test_a_run_that_a_platform_started_has_one_too() -> None:
    record = Kept("runs", RUN, about())
    record.begin({"a": {"node_rank": 0, "ranks": [0]}}, 1, "m")
    record.event(
        "rank", "rank 0 ended", "info", "a", rank=0, node_rank=0, local_rank=0, status=0, signal=None, attempt=0
    )
    record.end(nobodys_summary())
    done = report("latest", "--html", "page.html")
    assert done.code == 0 and "t.py" in is_alone(Path("page.html").read_text()).text, done.err
    assert "attempt 0: " in done.out and "all ranks ended with 0" in done.out


def begun(kind: str, at: float, first_ranks: Mapping[str, int], size: int, **more: Any) -> dict[str, Any]:
    of = {"world_size": size, "first_ranks": first_ranks, "level": "info", "host": None, "message": ""}
    return {
        "event": kind,
        "time": START + at,
        **of,
        **({"logs": "x"} if kind == "running" else {"master": "h:1"}),
        **more,
    }


def of_rank(at: float, rank: int, host: str, status: int | None, attempt: int = 0) -> dict[str, Any]:
    how = {"status": status, "signal": None, "attempt": attempt, "local_rank": 0, "node_rank": rank}
    return {
        "event": "rank",
        "time": START + at,
        "rank": rank,
        "level": "info",
        "host": host,
        "message": "",
        **how,
    }


def attempts_of(*events: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[tuple[Any, ...]]], str]:
    """Returns (the report, of each attempt (rank, host, whether its end is known), the text)."""
    a_run(summary=None, events=[*events])
    found = report("--json", ID).document()
    ranks = [[(it["rank"], it["host"], it["known"]) for it in each["ranks"]] for each in found["attempts"]]
    return found, ranks, " ".join(report(ID).out.split())


def test_a_run_that_is_followed_lasts_until_now(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_run(summary=None, events=[begun("running", 4, {"a": 0, "b": 2}, 4)])
    measured(folder, "a", [sample(at) for at in range(10, 36_000, 200)])
    monkeypatch.setattr("time.time", lambda: START + 36_000)
    for followed, seconds in ((False, 35_810), (True, 36_000)):
        leader = RunFolder(folder)
        if followed:
            assert leader.hold()
            leader.lead(None)
        found = report("--json", ID).document()
        assert (found["state"], found["seconds"], found["odd_samples"]) == (
            "followed" if followed else "open",
            seconds,
            0,
        )
        assert found["attempts"][0]["ended"] == START + seconds
        assert "no end known: ranks 0-3" in report(ID).out
        leader.release()


def test_what_comes_after_the_end_makes_the_run_no_longer() -> None:
    cleaned = {"event": "cleaned", "time": START + 20_000, "complete": True, "level": "info", "host": "a"}
    a_run(events=[*happened(), {**cleaned, "message": ""}])
    assert report("--json", ID).document()["seconds"] == 204


def test_a_lost_hosts_rank_is_on_no_other_host_than_it_was() -> None:
    first = [begun("running", 4, {"a": 0, "b": 1}, 2), of_rank(50, 0, "a", None)]
    second = [begun("attempt", 60, {"a": 0, "c": 1}, 2, attempt=1), of_rank(90, 1, "c", 0, 1)]
    found, ranks, said = attempts_of(*first, *second)
    assert ranks == [[(0, "a", False), (1, "b", False)], [(0, "a", False), (1, "c", True)]]
    assert found["ranks"] == {"a": [0], "c": [1]} and "attempt 0: 56 s, no end known: ranks 0-1" in said, said


def test_a_run_that_went_on_with_fewer_has_those_alone() -> None:
    second = [begun("attempt", 60, {"a": 0}, 1, attempt=1), of_rank(90, 0, "a", 0, 1)]
    found, ranks, said = attempts_of(begun("running", 4, {"a": 0, "b": 1}, 2), *second)
    assert [len(each) for each in ranks] == [2, 1] and found["world_size"] == 1
    assert "attempt 1: 30 s, all ranks ended with 0" in said, said


def test_an_attempt_of_which_no_rank_is_known_did_not_end_well() -> None:
    a_run(summary=None, plan={**PLAN, "hosts": {}}, events=[begun("running", 4, {}, 0)])
    assert "no rank is known" in report(ID).out


@pytest.mark.parametrize("more", [{"plan": None}, {"summary": None}, {"events": ("version",)}, {"handed": True}])
def test_what_is_missing_is_left_out(more: dict[str, Any]) -> None:
    a_run(**more)
    done = report(ID, "--html", "page.html")
    assert done.code == 0, done.err
    is_alone(Path("page.html").read_text())


def test_what_is_edited_costs_only_itself() -> None:
    """Of a list, or of the facts of several hosts, what makes sense is kept."""
    hosts = {"a": {"ranks": [0, "1", 2]}, "b": {"ranks": 3}}
    facts = {"a": {"python": {"version": "3.11.7"}}, "b": {"torch": "2.1"}}
    plan = {"hosts": hosts, "facts": facts, "fleet": {"argv": ["fleet", 7, "train.py"]}, "started": 10**17}
    folder = a_run(plan={**PLAN, **plan}, events=("version",), summary=None)
    found = report("--json", ID).document()
    assert found["ranks"] == {"a": [0, 2]} and found["versions"]["python"] == "3.11.7"
    assert found["command"] == ["fleet", "train.py"] and found["code"].endswith("which code.diff holds")
    assert found["started"] == (folder / "events.jsonl").stat().st_mtime, "no such time is there"
    assert restarts_of({"restarts": [{"attempt": 1}, None, {"attempt": 2}]}) == [{"attempt": 1}, {"attempt": 2}]


def test_what_preflight_found_is_on_record_and_on_the_page() -> None:
    Path("hostfile").write_text("a\n")
    nodes = Scripted({"a": well(ends(0), memory={"total": 1 << 35, "available": 100 << 20})})
    done = command_line(["launch", "--engine", "command", "./t"], nodes)
    said = "100 MiB memory available, at least 1 GiB wanted"
    assert done.code == 0 and "1 finding that may slow or spoil the run: memory" in done.err, done.err
    (notice,) = report("--json", "latest").document()["notices"]
    assert said in notice["message"] and notice["level"] == "warning" and notice["hint"]
    assert said in report("latest", "--html", "page.html").out and said in Path("page.html").read_text()


def test_no_run_is_an_error_with_a_next_step() -> None:
    done = report("latest")
    assert done.code == 2 and "hint" in done.err and not done.faults


# -- what was measured ---------------------------------------------------------------------------------------------
def test_a_large_file_is_thinned_and_stays_within_its_plot() -> None:
    folder = a_run()
    measured(folder, "a", [sample(110 + at / 1000, cpu=at % 100) for at in range(50_000)])
    assert (folder / "a/metrics.jsonl").stat().st_size > 8 << 20
    points, odd = read_metrics(folder / "a/metrics.jsonl", START, START + 999)
    assert 200 < len(points) <= POINTS and odd == 0
    assert [point["time"] for point in points] == sorted(point["time"] for point in points)
    report(ID, "--html", "page.html")
    page = is_alone(Path("page.html").read_text())
    for attrs in page.of("path"):
        for x, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", attrs["d"] or ""):
            assert 0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT


def test_where_a_value_is_not_known_the_line_is_interrupted() -> None:
    folder = a_run()
    measured(folder, "a", [sample(at, cpu=None if 140 <= at < 160 else 30.0) for at in range(110, 200, 10)])
    report(ID, "--html", "page.html")
    (line,) = [attrs["d"] for attrs in is_alone(Path("page.html").read_text()).of("path") if attrs["class"] == "cpu"]
    assert (line or "").count("M") == 2


ODD: tuple[Any, ...] = (
    *(None, True, -1, 1e400, float("nan"), 10**400, "", EVIL, "x" * 70_000, [], {}, [[]], {"a": None}, [1, 2], START),
    *({EVIL: [1, "x"]}, [{"use": EVIL}], [{"use": 1e300, "power": -5}], "../../etc", [None] * 5000),
)


def spoilt(value: Any, rng: random.Random) -> Any:
    """Returns a document in which some value is another one."""
    if rng.random() < 0.08:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {key: spoilt(item, rng) for key, item in value.items()}
    return [spoilt(item, rng) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(25))
def test_whatever_a_folder_holds_it_is_a_page_or_an_error(seed: int) -> None:
    """A folder may come from elsewhere, and a host's samples from anyone."""
    rng = random.Random(seed)
    hosts = {name: {"ok": True, "exit_status": 0, "stdout": "", "stderr": "", "error": None} for name in "ab"}
    summary = {"exit_code": 1, "hosts": hosts, "run": ID, "first_failure": FAILURE, "end": None, "next": [EVIL]}
    events = [spoilt(event, rng) for event in happened()]
    given = {"plan": spoilt(PLAN, rng), "summary": spoilt(summary, rng)}
    given = {name: it if isinstance(it, dict) else {} for name, it in given.items()}
    folder = a_run(handed=True, events=[each for each in events if isinstance(each, dict) and each], **given)
    for host in ("a", "<b>"):
        lines = [json.dumps(spoilt(sample(at), rng)) for at in range(0, 200, 5)]
        measured(folder, host, [line[: rng.choice([9, 10**6])] for line in lines])
    (folder / "attempt0").symlink_to("/")
    done = report(ID, "--html", "page.html")
    assert (
        done.code in (0, 2) and not done.faults and "\x1b[31m" not in done.out.replace("\x1b[31m\x1b[1mfailed", "")
    ), done
    if done.code == 0:
        is_alone(Path("page.html").read_text())
