"""The rules: a file a rule in tests/golden/rules, of facts and what `fleet check` and `fleet launch` say of them.

A case: {"facts": {HOST: {dotted path: value}}, "check": [finding], "launch": [finding]}: how the facts of some of three
healthy hosts, gpu1 to gpu3, differ. A finding is "SEVERITY RULE: MESSAGE". Besides: "engine", "slots", and "ranks", as
--nproc-per-node has them. FLEET_GOLDEN=write writes what is found now: read the difference before you commit it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.model import Host, Inventory, Job
from fleet.ops.check import view_of
from fleet.ops.run.plan.findings import findings
from fleet.ops.run.plan.plan import plan
from fleet.requests.hosts import Check
from fleet.requests.launch import Launch
from fleet.rules.judge import RULES, judge
from fleet.rules.rule import Finding
from tests.host_facts import facts_of

FOLDER = Path(__file__).with_name("rules")
NAMES = ("gpu1", "gpu2", "gpu3")


def found(case: dict[str, Any]) -> dict[str, list[str]]:
    """What both verbs say."""
    hosts = tuple(Host(name, name, slots=case.get("slots", 8)) for name in NAMES)
    facts = {name: facts_of(name, case["facts"].get(name, {})) for name in NAMES}
    engine = case.get("engine", "torchrun")
    checked = judge({host.name: view_of(host, facts[host.name], Check(engine=engine)) for host in hosts})
    job, asked = (
        Job("t.py", engine=engine),
        Launch("t.py", folder=FOLDER.with_name("here"), nproc_per_node=case.get("ranks")),
    )
    launched = findings(
        plan(
            Inventory(hosts),
            job,
            asked,
            "r",
        ),
        facts,
    )
    return {"check": said(checked), "launch": said(launched)}


def said(found: Iterable[Finding]) -> list[str]:
    return [f"{finding.severity} {finding.id}: {finding.message}" for finding in found]


@pytest.fixture(autouse=True)
def one_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A finding may name a time."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_speaks_as_in_its_case(rule: Any) -> None:
    path = FOLDER / f"{rule.id}.yaml"
    case = yaml.safe_load(path.read_text())
    now = found(case)
    if os.environ.get("FLEET_GOLDEN") == "write":
        case |= now
        path.write_text(yaml.safe_dump(case, sort_keys=False, width=10_000, default_flow_style=None))
    assert now == {"check": case["check"], "launch": case["launch"]}
    assert any(f" {rule.id}: " in line for line in now["check"] + now["launch"])


def test_every_case_has_its_rule() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {rule.id for rule in RULES}


def test_what_check_calls_an_error_launch_refuses_and_the_other_way_round() -> None:
    for path in FOLDER.glob("*.yaml"):
        case = yaml.safe_load(path.read_text())
        check, launch = ({line for line in case[verb] if line.startswith("error")} for verb in ("check", "launch"))
        assert check <= launch, path.stem
        if launch - check:
            assert path.stem in ONLY_A_RUN_HAS, path.stem
        told = {verb: {line.split(":")[0].split()[1] for line in case[verb] if line[:4] != "info"} for verb in VERBS}
        assert told["check"] <= told["launch"], path.stem


VERBS = ("check", "launch")
ONLY_A_RUN_HAS = ("live-run", "config-missing", "script-missing", "script-of-another", "workdir-missing")
ONLY_A_RUN_HAS += ("master", "way-to-master")
