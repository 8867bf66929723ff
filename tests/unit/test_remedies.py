"""A remedy that names an option or a line of the inventory silences its finding, when it is followed.

Those that change a host are followed where a host is: locks and modules in tests/node (test_extension_builds,
test_imports), --sync and --force=PATTERN in tests/lab/test_sync_launch, ports and addresses in
tests/lab/test_launch_causes; those of rules that compare hosts make the facts equal, as in all cases of
tests/golden/rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from fleet.model import Host
from fleet.node.facts.tools import Tools
from fleet.rules.judge import RULES
from tests.host_facts import facts_of
from tests.plans import planned
from tests.verdicts import of_launch

CASES = Path(__file__).parents[1] / "golden/rules"
NAMES = ("gpu1", "gpu2", "gpu3")


class Followed(NamedTuple):
    """words: what of the remedy is followed. before, job, host, request: what is typed or written, before and then."""

    rule: str
    words: str
    before: Mapping[str, Any] = {}
    job: Mapping[str, Any] = {}
    host: Mapping[str, Any] = {}
    request: Mapping[str, Any] = {}


FOLLOWED = [
    Followed("gpu-slots", "lower 'slots' of this host", host={"slots": 1}),
    Followed("ranks-share-gpus", "set 'slots'", before={"nproc_per_node": 16}, host={"slots": 8}),
    Followed("ranks-share-gpus", "--nproc-per-node gpu", before={"nproc_per_node": 16}),
    Followed("ranks-alone", "--cpu", before={"engine": "accelerate"}, job={"options": {"cpu": True}}),
    Followed("live-run", "--share", request={"share": True}),
    Followed("gpus-hidden", "--env", before={"nproc_per_node": 8}),
    Followed("environment", "--env"),
    Followed("environment-debug", "--env"),
]


def reported(rule: str, job: Mapping[str, Any], host: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    whole = yaml.safe_load((CASES / f"{rule}.yaml").read_text())
    case, slots = whole["facts"], {"slots": whole.get("slots", 8)}
    hosts = tuple(Host(name, name, **{**slots, **host}) for name in NAMES)
    facts = {name: facts_of(name, changed_by_env(case.get(name, {}), job)) for name in NAMES}
    made = planned(*hosts, **{"engine": "torchrun", **job, **request})
    return rule in {finding.id for finding in of_launch(made, facts)}


def changed_by_env(facts: dict[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """As a node finds them, of which test_what_the_command_line_sets_is_nobody_elses is."""
    env = job.get("env", {})
    own = {name: digest for name, digest in facts.get("environment", {}).items() if name not in env}
    found = {**facts, "environment": own} if "environment" in facts else dict(facts)
    return {**found, "visible": 8} if "CUDA_VISIBLE_DEVICES" in env and "visible" in facts else found


@pytest.mark.parametrize("each", FOLLOWED, ids=lambda each: f"{each.rule}: {each.words}")
def test_a_remedy_that_is_followed_silences_its_finding(each: Followed) -> None:
    (rule,) = [rule for rule in RULES if rule.id == each.rule]
    if rule.id != "live-run":  # whose line has the run's id
        assert each.words in rule.remedy
    assert reported(each.rule, each.before, {}, {})
    after = {name: value for name, value in each.before.items() if name != "nproc_per_node"}
    if each.words == "--env":
        names = ("CUDA_VISIBLE_DEVICES", "TORCH_DISTRIBUTED_DEBUG", "NCCL_IB_DISABLE", "PYTHONPATH")
        after = {**each.before, "env": dict.fromkeys(names, "x")}
    assert not reported(each.rule, {**after, **each.job}, each.host, each.request)


def test_what_the_command_line_sets_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    spec: dict[str, Any] = {"python": None, "activate": None, "env": {}, "workdir": None}
    for env, visible in (({}, 1), ({"CUDA_VISIBLE_DEVICES": "0,1,2", "TORCH_DISTRIBUTED_DEBUG": "OFF"}, 3)):
        tools = Tools({**spec, "env": env})  # type: ignore[typeddict-item]
        tools.activated.set()
        found = tools.inherited()
        assert found["visible"] == visible
        assert ("TORCH_DISTRIBUTED_DEBUG" in found["environment"]) is not bool(env)
