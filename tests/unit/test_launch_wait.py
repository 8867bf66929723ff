"""`fleet launch --wait`: for whom it waits, for how long, and what it does not wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConnectError, FleetError
from fleet.events import Event, Notice
from fleet.model import Host, Inventory
from fleet.node.base.processes import myself
from fleet.ops.run.launch.run import run
from fleet.ops.run.plan.plan import plan_of
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from tests.clock import HandClock
from tests.in_process import Outcome, command_line
from tests.scripted import Answer, Message, Scripted, about, ends, well

LIVE = {"run": "first-20260101-000000-0000", "about": about(), "devices": None}
OTHER = {"run": "next-20260101-000000-0001", "about": about(), "devices": None}
HERE = Inventory((Host("a", "198.18.0.1"),))
SCRIPT = {"path": "/t", "exists": True, "executable": True, "sha256": "0" * 64}
MISSING = {"script": {"path": "/w/t", "exists": False, "executable": False, "sha256": None}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hostfile").write_text("a\n")


def beside(*runs: Any) -> list[Message]:
    return [{"event": "neighbours", "runs": [*runs]}]


def node(*live: list[Any]) -> dict[str, Answer]:
    """Returns a node that reports these live runs, look by look, and then none."""
    left = [*live]
    script = well()["probe"][0]["facts"]["script"]  # type: ignore[index]

    def look() -> list[Any]:
        return left.pop(0) if left else []

    return {
        **well(ends(0)),
        "probe": lambda spec: [{"facts": {"script": script, "runs": look()}}],
        "neighbours": lambda spec: beside(*look()),
    }


class Launched:
    """A launch by a clock that no one waits for, with what it said."""

    def __init__(self, nodes: Scripted, clock: HandClock | None = None, **options: Any) -> None:
        self.clock, self.said, self.nodes = clock or HandClock(), list[str](), nodes
        inventory = Inventory((Host("a", "198.18.0.1"),))
        plan = plan_of(inventory, Launch("./t", engine="command", **options))
        self.plan = plan
        self.code: int | None = None
        self.error: FleetError | None = None
        try:
            self.code = run(plan, Runtime(nodes, emit=self.emit, clock=self.clock)).exit_code
        except FleetError as error:
            self.error = error

    def emit(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.said.append(event.message)

    @property
    def waited_for(self) -> list[str]:
        return [text for text in self.said if text.startswith("waiting: ")]


def programs(nodes: Scripted) -> list[str]:
    return [program for _, program, _ in nodes.sent]


def test_it_names_for_whom_it_waits_once_and_again_where_that_changes() -> None:
    nodes = Scripted({"a": node([LIVE], [LIVE], [LIVE], [OTHER], [OTHER])})
    launched = Launched(nodes, wait=True)
    assert launched.code == 0 and launched.error is None, launched.error
    first, second = launched.waited_for
    assert "a: run first-20260101-000000-0000 of ada@head is live" in first and "next-20260101" in second
    assert programs(nodes)[:6] == ["probe", *["neighbours"] * 5], "a busy host is not examined again and again"
    assert not [*Path(".fleet/waiting").glob("*.json")]


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        ({**MISSING, "runs": [LIVE]}, {}),  # something else is wrong, too
        (MISSING, {}),
        ({"runs": [LIVE]}, {"wait": False}),
    ],
)
def test_what_no_wait_mends_is_refused_at_once(facts: dict[str, Any], options: dict[str, Any]) -> None:
    launched = Launched(Scripted({"a": well(**facts)}), **{"wait": True, **options})
    assert launched.error is not None and launched.error.exit_code == 123 and not launched.waited_for
    assert launched.clock.now == 1000.0 and not [*Path(".fleet/waiting").glob("*.json")]


def test_after_its_time_it_is_refused_as_any_launch() -> None:
    nodes = Scripted({"a": {**node(*[[LIVE]] * 99)}})
    launched = Launched(nodes, wait=90)
    assert launched.error is not None and launched.error.exit_code == 123
    assert "preflight refused, 1 finding" in launched.error.message and 1090 <= launched.clock.now < 1111
    assert any("is live" in text and not text.startswith("waiting") for text in launched.said), launched.said


def test_a_port_that_a_run_has_is_waited_for_and_one_of_another_program_is_not() -> None:
    for holder, waited in (
        ({"pid": 7, "command": "x", "run_id": LIVE["run"]}, True),
        ({"pid": 7, "command": "x"}, False),
    ):
        taken = {"ok": False, "error": "port 29500 is taken", "hint": None, "holder": holder}
        nodes = Scripted({"a": {**well(port=taken), "neighbours": beside()}})
        launched = Launched(nodes, wait=30, master_port=29500)
        assert launched.error is not None and launched.error.exit_code == 123, launched.said
        assert bool(launched.waited_for) is waited, launched.said


def test_code_is_not_replaced_under_a_run_that_is_waited_for() -> None:
    nodes = Scripted({"a": {"neighbours": beside(LIVE)}})
    launched = Launched(nodes, wait=20, sync=True)
    assert launched.error is not None and launched.error.exit_code == 123 and launched.waited_for
    assert set(programs(nodes)) == {"neighbours"}


def a_place(number: int, who: dict[str, Any], run_id: str, *hosts: Any) -> Path:
    folder = Path(".fleet/waiting")
    folder.mkdir(0o700, parents=True, exist_ok=True)
    folder.parent.chmod(0o700)
    place = folder / f"{number:09}-{run_id}.json"
    place.write_text(json.dumps({"who": who, "run": run_id, "owner": "ada@head", "hosts": [*hosts]}))
    return place


def test_the_same_run_is_named_once_however_it_is_described() -> None:
    """Preflight knows its GPUs, and the look that costs less does not."""
    nodes = Scripted({"a": node([{**LIVE, "devices": [0]}], [LIVE], [LIVE])})
    launched = Launched(nodes, wait=True)
    (text,) = launched.waited_for
    assert "GPUs 0" in text, text


def test_a_look_that_fails_does_not_end_the_wait() -> None:
    looks = 0

    def look(spec: Any) -> list[Message]:
        nonlocal looks
        looks += 1
        if looks in (2, 3):
            raise ConnectError("connection refused", host="a")
        return beside(*[LIVE] * (looks < 5))

    answers = node([LIVE])
    launched = Launched(Scripted({"a": {**answers, "neighbours": look}}), wait=True)
    assert launched.code == 0, launched.error
    assert [text.partition(":")[0] + text.partition(":")[2][:17] for text in launched.waited_for] == [
        "waiting a: run first-202"[:24],
        "waiting no answer from a"[:24],
        "waiting a: run first-202"[:24],
    ], launched.waited_for


def test_code_is_sent_once_while_a_port_is_waited_for_and_once_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, looks = list[float](), 0
    holder = {"pid": 7, "command": "x", "run_id": LIVE["run"]}
    taken = {"ok": False, "error": "port 29500 is taken", "hint": None, "holder": holder}
    script = well()["probe"][0]["facts"]["script"]  # type: ignore[index]

    def facts(spec: Any) -> list[Any]:
        nonlocal looks
        looks += 1
        return [{"facts": {"script": script, **({"port": taken} if looks < 6 else {})}}]

    nodes = Scripted({"a": {**well(ends(0)), "probe": facts, "neighbours": beside()}})
    monkeypatch.setattr("fleet.ops.run.launch.run.deliver", lambda plan, runtime: sent.append(looks))
    launched = Launched(nodes, wait=True, sync=True, master_port=29500)
    assert launched.code == 0 and len(launched.waited_for) == 1, (launched.error, launched.said)
    assert sent == [0, 6]


def test_a_file_of_another_name_is_no_place() -> None:
    folder = Path(".fleet/waiting")
    folder.mkdir(0o700, parents=True)
    folder.parent.chmod(0o700)
    for name in ("1x.json", "0-.json", "12.json"):
        (folder / name).write_text("{}")
    assert Launched(Scripted({"a": node()}), wait=True).code == 0


MINE = ["198.18.0.1", 22, None]


def test_one_that_came_before_starts_first_and_a_dead_or_unlike_one_holds_up_no_launch() -> None:
    alive = myself()
    before = a_place(1, alive, "before-20260101-000000-0000", MINE)
    others = [
        a_place(2, {**alive, "pid": 2**22 + 1}, "dead-20260101-000000-0000", MINE),
        a_place(3, {**alive, "machine": "elsewhere"}, "far-20260101-000000-0000", MINE),
        a_place(4, alive, "aside-20260101-000000-0000", ["198.18.0.9", 22, None]),
        a_place(5, {}, "odd-20260101-000000-0000", MINE),
    ]
    (Path(".fleet/waiting") / "000000006-cut.json").write_text('{"who": ')
    clock = HandClock()
    clock.at(1005.0, before.unlink)
    launched = Launched(Scripted({"a": node()}), clock, wait=True)
    assert launched.code == 0 and clock.now >= 1005.0, launched.error
    assert launched.waited_for == ["waiting: the launch of before-20260101-000000-0000 by ada@head came before"]
    assert [place.exists() for place in others] == [False, True, True, True], "nothing is removed on what is not known"


@pytest.mark.parametrize("wait", [True, 30.0, False])
def test_one_that_another_heads_run_forestalls_as_it_starts_waits_on_in_its_place(wait: bool | float) -> None:
    """The nodes turned it away once, or always where it has no time for that."""
    sent, places = list[str](), list[list[str]]()

    def supervise(spec: Any) -> list[Message]:
        sent.append(spec["run"])
        places.append(sorted(path.name for path in Path(".fleet/waiting").glob("*.json")))
        is_turned_away = len(sent) < 2 or wait == 30.0
        return beside(OTHER) if is_turned_away else [{"event": "started", "pid": 1, "dir": "/r"}]

    nodes = Scripted({"a": {**node([], [OTHER], [OTHER]), "supervise": supervise}})
    launched = Launched(nodes, wait=wait)
    if wait is True:
        assert launched.code == 0 and len(launched.waited_for) == 1, (launched.error, launched.said)
        assert "next-20260101-000000-0001 of ada@head is live" in launched.waited_for[0]
        first, second = sent
        assert first != second and places == [[f"000000001-{first}.json"]] * 2, "its place is kept"
        assert [path.name for path in Path("runs").glob("t-*")] == [second]
    else:
        assert launched.error is not None and launched.error.exit_code == 123, launched.said
        assert wait or "preflight refused" in launched.error.message and len(sent) == 1
        assert not wait or launched.waited_for and 1030 <= launched.clock.now < 1060
    assert not [*Path(".fleet/waiting").glob("*.json")]


@pytest.mark.parametrize(
    "request_", [Launch("my.train", module=True, wait=True), Launch("bash", ["./t.sh"], engine="command", wait=True)]
)
def test_one_that_was_forestalled_keeps_its_name(request_: Launch) -> None:
    sent = list[str]()

    def supervise(spec: Any) -> list[Message]:
        sent.append(spec["run"])
        return beside(OTHER) if len(sent) < 2 else [{"event": "started", "pid": 1, "dir": "/r"}]

    run(plan_of(HERE, request_), Runtime(Scripted({"a": {**node(), "supervise": supervise}}), clock=HandClock()))
    first, second = (run.rsplit("-", 3)[0] for run in sent)
    assert first == second


def test_one_that_was_forestalled_where_a_host_is_lost_keeps_the_folder_of_what_may_run_there() -> None:
    """A process stops it in the background, and brings what it wrote."""
    others: list[list[Message]] = [beside(OTHER), [{"event": "started", "pid": 1, "dir": "/r"}]]
    lost = {**node(), "stop": []}
    nodes = Scripted({"a": lost, "b": {**node(), "supervise": lambda spec: others.pop(0), "follow": ends(1)}})
    hosts = Inventory((*HERE.hosts, Host("b", "198.18.0.2")))
    assert run(plan_of(hosts, Launch("./t", engine="command", wait=True)), Runtime(nodes, clock=HandClock())).ok
    first, second = sorted(spec["run"] for host, program, spec in nodes.sent if (host, program) == ("a", "supervise"))
    ended = [json.loads(Path("runs", run, "summary.json").read_text())["exit_code"] for run in (first, second)]
    assert sorted(ended) == [0, 123]


def test_one_that_began_and_has_no_spare_left_is_over_and_waits_no_more() -> None:
    """Its folder has its end, its --notify was started."""
    looks: list[list[Any]] = [[], [OTHER]]

    def probe(spec: Any) -> list[Message]:
        return [{"facts": {"script": SCRIPT, "runs": looks.pop(0) if looks else []}}]

    spare = {**node(), "probe": probe}
    failed: list[Message] = [{"event": "failed", "message": "no room", "hint": None}]
    nodes = Scripted({"a": {**node(), "supervise": failed}, "b": spare})
    hosts = Inventory((*HERE.hosts, Host("b", "198.18.0.2")))
    asked = Launch("./t", engine="command", wait=True, spares=1, notify="echo x >> got")
    with pytest.raises(FleetError, match="preflight refused, 1 finding"):
        run(plan_of(hosts, asked), Runtime(nodes, clock=HandClock()))
    assert programs(nodes).count("supervise") == 1 and Path("got").read_text() == "x\n"


def test_where_its_time_ends_behind_another_launch_it_is_refused_and_does_not_jump_the_line() -> None:
    a_place(1, myself(), "before-20260101-000000-0000", MINE)
    nodes = Scripted({"a": node()})
    launched = Launched(nodes, wait=5)
    assert launched.error is not None and launched.error.exit_code == 123 and not nodes.sent
    assert "came before; nothing was started anywhere" in launched.error.message


def test_an_interrupt_while_it_waits_leaves_nothing() -> None:
    nodes, clock = Scripted({"a": node(*[[LIVE]] * 99)}), HandClock()
    runtime = Runtime(nodes, clock=clock)
    clock.at(1003.0, runtime.cancel.set)
    plan = plan_of(Inventory((Host("a", "198.18.0.1"),)), Launch("./t", engine="command", wait=True))
    with pytest.raises(FleetError, match="interrupted while waiting for hosts; nothing was started") as error:
        run(plan, runtime)
    assert error.value.exit_code == 130
    assert not [*Path(".fleet/waiting").glob("*.json")] and not Path("runs", plan.run_id).exists()


# -- as it is typed ------------------------------------------------------------------------------------------------
def launch(*words: str, nodes: Scripted | None = None) -> Outcome:
    return command_line(["launch", "--engine", "command", *words], nodes or Scripted({"a": node()}))


@pytest.mark.parametrize(
    ("words", "wait"),
    [
        (["--wait", "./t"], True),
        (["--wait", "30", "./t"], 30.0),
        (["--wait=30", "./t"], 30.0),
        (["--wait", "--env", "A=b", "./t"], True),
        (["--env", "A=--wait", "--wait", "./t", "--wait", "7"], True),
        (["./t", "--wait", "x"], None),
        (["-vw", "a", "--wait", "./t"], True),
        (["-vw", "a", "--wait", "1e3", "./t"], 1000.0),
        (["-vwa", "--wait", "+5", "./t"], 5.0),
        (["--wait=false", "./t"], None),
        (["--wait=5", "--wait", "./t"], True),
        (["--wait=5", "--wait", "7", "./t", "--wait"], 7.0),
    ],
)
def test_its_seconds_may_be_left_out(words: list[str], wait: bool | float | None) -> None:
    done = launch(*words)
    assert done.code == 0, done.err
    asked = json.loads(next(Path("runs").glob("t-*/run.json")).read_text())["launch"]
    assert asked.get("wait") == wait and type(asked.get("wait")) is type(wait)
    assert asked.get("args", []) == words[words.index("./t") + 1 :]
    again = command_line(["launch", "--again", "latest"], Scripted({"a": node()}))
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--wait=soon", "./t"], "--wait 'soon': must be true or false or a number from 0"),
        (["--wait", "-1", "./t"], "--wait -1: must be"),
        (["--wait", "1h", "./t"], "hint: --wait 3600 is an hour; without a limit"),
        (["--wait", "30m", "./t"], "must be true or false or a number"),
        (["--on", "slurm", "--notify", "curl https://h.example/T0a1b2c3d4e5f6", "./t"], "it may hold a secret"),
        (["--sample", "0.4", "./t"], "--sample 0.4: must be 0, or 0.5 or more"),
        (["--on", "slurm", "--wait", "./t"], "--wait: the queue waits for free nodes"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str) -> None:
    done = launch(*words)
    assert done.code == 2 and said in done.err, done


def test_a_playbook_has_both_forms() -> None:
    for value in ("true", "30"):
        Path("book.yaml").write_text(f"- launch: {{engine: command, script: ./t, wait: {value}}}\n")
        done = command_line(["play", "book.yaml"], Scripted({"a": node()}))
        assert done.code == 0, done


def test_json_has_an_event_for_it() -> None:
    done = launch("--json", "--wait", "./t", nodes=Scripted({"a": node([LIVE])}))
    lines = [json.loads(line) for line in done.out.splitlines()]
    (event,) = [line for line in lines if line["event"] == "occupied"]
    assert event["launches"] == [LIVE["run"]] and "first-20260101" in event["message"] and done.code == 0
