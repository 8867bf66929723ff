"""`fleet launch --wheels`: into the Python of the ranks, before any starts; one host that cannot refuses the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import FleetError, UsageError
from fleet.model import Host, Inventory
from fleet.ops.run.launch.run import run
from fleet.ops.run.plan.plan import plan_of
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from tests.run_folders import an_id
from tests.scripted import Scripted, ends, well
from tests.unit.test_hostile_wheels import FACTS
from tests.wheelmaker import make_wheel

THERE = {"states": [{"state": "there", "verified": True}]}
HOSTS = (Host("a", "198.18.0.1"), Host("b", "198.18.0.2", python="/b/python"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    make_wheel(tmp_path / "w", "tinypkg")


def launched(facts: dict[str, dict[str, Any]], **options: Any) -> tuple[int | FleetError, Scripted]:
    """(the run's exit code or why it did not begin, the nodes)."""
    nodes = Scripted(
        {
            name: {
                **well(ends(rank)),
                "neighbours": [{"event": "neighbours", "runs": []}],
                "interpreter": [FACTS | more],
            }
            for rank, (name, more) in enumerate(facts.items())
        }
    )
    plan = plan_of(Inventory(HOSTS), Launch("./t", **{"engine": "command", "wheels": "w", **options}))
    try:
        return run(plan, Runtime(nodes)).exit_code, nodes
    except FleetError as error:
        return error, nodes


@pytest.mark.parametrize(("typed", "pythons"), [(None, [None, "/b/python"]), ("/x/python", ["/x/python"] * 2)])
def test_ranks_start_once_their_python_has_them(typed: str | None, pythons: list[str | None]) -> None:
    code, nodes = launched({"a": THERE, "b": THERE}, python=typed)
    sent = {host: spec["python"] for host, program, spec in nodes.sent if program == "interpreter"}
    assert code == 0 and [sent["a"], sent["b"]] == pythons
    order = [program for _, program, _ in nodes.sent]
    assert max(at for at, it in enumerate(order) if it == "interpreter") < order.index("probe")


def test_one_host_that_cannot_take_them_refuses_the_run() -> None:
    error, nodes = launched({"a": {}, "b": {"pip": None}})
    assert isinstance(error, FleetError) and (error.exit_code, error.host, error.kind) == (123, "b", "no-pip")
    assert "/p has no pip; nothing was started anywhere" in str(error)
    assert "supervise" not in str([program for _, program, _ in nodes.sent])


def test_what_is_not_there_is_named_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="none does not exist"):
        plan_of(Inventory(HOSTS), Launch("./t", wheels="none", sync=True))
    claims = an_id("t")  # of a job, whose --setup may make it
    error, nodes = launched({"a": THERE, "b": THERE}, wheels="none", sync=True, claims=claims)
    assert isinstance(error, FleetError) and error.exit_code == 2 and "none does not exist" in str(error)
    assert nodes.sent == []


def test_a_plan_shows_them_wherever_it_is_used_again(tmp_path: Path) -> None:
    plan = plan_of(Inventory(HOSTS), Launch("./t", wheels="w"))
    assert plan.describe()["wheels"] == plan.request.document["wheels"] == str(tmp_path / "w")
    assert any(str(tmp_path / "w") in line for line in plan.lines() if isinstance(line, str))
    assert "wheels" not in plan_of(Inventory(HOSTS), Launch("./t")).describe()
